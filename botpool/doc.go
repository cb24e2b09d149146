// Package botpool keeps documents in a Telegram channel through a pool of bots.
// It is the only package that speaks to Telegram.
//
// Each bot has one MTProto session and a serial queue for its uploads; N bots
// send N documents at once. Downloads and small calls go to any bot, several at
// a time. Which bot gets what, and what happens when Telegram says "wait", is
// decided in schedule.go; what an error means, in classify.go and nowhere else.
//
// A tgfs.Ref names a message and nothing that belongs to one bot: access hashes
// and file references are resolved by each bot for itself (locate.go) and never
// leave the package.
//
// The files, in the order in which an upload meets them: pool.go (the exported
// surface), schedule.go (which bot), upload.go (the parts), post.go (the message
// and its lost replies). A download: calls.go (which bot), fetch.go, locate.go,
// link.go (another DC). Under both: bot.go (a bot's life), signin.go (session and
// rights), waits.go and session.go (what outlives a restart).
package botpool
