// Package kv is the transactional store under the index: one interface, and
// its engines. It knows tables of records and nothing of files.
//
// A record has a Key: table, partition and sort key. Partitions are scanned in
// the byte order of their sort keys. A commit is a function that reads and
// writes through a Tx; it is applied whole or not at all, and in the same step
// it is appended to one ordered log of changes.
package kv

import (
	"context"
	"errors"
)

// Key names a record: table, partition (most often an inode) and sort key.
// S == "" is the partition's own record. A record holds either a value or a
// counter; which of them is the same for all records of a table.
type Key struct {
	T byte
	P uint64
	S string
}

// KV is one record of a scanned partition. V belongs to the caller.
type KV struct {
	S string
	V []byte
}

// Pos is a place in the log. Epoch names the incarnation of the store: it
// changes when a store is made anew or restored. Seq is the number of a commit
// in it, from 1 without gaps; 0 stands before the first.
type Pos struct {
	Epoch uint64
	Seq   uint64
}

// Change is one commit of the log. Redo is the commit's writes as images of
// what the records are after it (counters included), so that applying changes
// again, in order, is harmless. Decode it with DecodeRedo.
type Change struct {
	Pos  Pos
	Redo []byte
}

// Conditions of a store. Test for them with errors.Is.
var (
	// ErrGap: the log no longer holds the position asked for.
	ErrGap = errors.New("log position is gone")
	// ErrLost: the store has forgotten commits that were acknowledged, or is
	// another one than before: a failover or a restored copy. It takes no
	// commits from this client until that is mended.
	ErrLost = errors.New("the index has lost commits")
	// ErrFenced: another client has ended this session. Nothing that it
	// commits is taken any more.
	ErrFenced = errors.New("session was ended by another client")
)

// Reader reads one consistent state of the store. The function that is given
// it must not keep it, and must not call the store meanwhile. A read may fail
// because the state has moved on: then the function must return, and runs again.
type Reader interface {
	// Fetch says which records will be read next. It is a hint: an engine
	// that is far away brings all of them in one round trip.
	Fetch(ks ...Key)
	// Get returns the record's value, or nil when there is none. The value
	// belongs to the caller.
	Get(k Key) ([]byte, error)
	// Counter returns the value of a record written by Add and Max; 0 when
	// there is none.
	Counter(k Key) (int64, error)
	// Scan returns up to n records of a partition in order of their sort
	// keys, those after the given one ("" starts at the first record whose
	// sort key is not empty).
	Scan(t byte, p uint64, after string, n int) ([]KV, error)
}

// Tx is the view and the write set of one commit. It reads its own writes.
// When the function that is given it returns an error, no write is applied.
type Tx interface {
	Reader
	// Guard makes the commit fail over and run again if anybody changed
	// partition p of table t meanwhile (for rmdir: it is empty).
	Guard(t byte, p uint64)
	// Set writes a record. v is not retained.
	Set(k Key, v []byte)
	// Del removes a record; removing what is absent is nothing.
	Del(k Key)
	// Add adds d to a counter record. It reads nothing, so it conflicts
	// with nobody.
	Add(k Key, d int64)
	// Max raises a counter record to v, or sets it to v when there is none.
	// It conflicts with nobody.
	Max(k Key, v int64)
}

// Store is a transactional store with an ordered log. It is safe for use by
// many goroutines.
type Store interface {
	// Update runs fn and commits its writes, once; a commit without writes
	// gets no number of its own. fn may run several times
	// and must have no effect but through its Tx. When Update returns nil
	// the commit survives the death of this process; Sync says when it
	// survives a power cut. fn's error is returned as it is.
	Update(ctx context.Context, fn func(Tx) error) (Pos, error)
	// View runs fn on one consistent state that holds at least min, several
	// times when the state moves on. It is short: the state it pins keeps the store from reusing room.
	View(ctx context.Context, min Pos, fn func(Reader) error) error
	// Head is the position of the newest commit.
	Head(ctx context.Context) (Pos, error)
	// Sync returns when all commits so far survive a power cut.
	Sync(ctx context.Context) error
	// Changes calls fn with the commits after from, in order and in batches,
	// up to the head at the time of the call. ErrGap when some were trimmed.
	Changes(ctx context.Context, from Pos, fn func([]Change) error) error
	// Dump calls fn with the records of the given tables (nil: of all), in
	// pages and in no promised order. It is fuzzy: commits go on meanwhile,
	// and a page may be older than the next. Applying the changes after the
	// returned position, in order, makes the dump exact.
	Dump(ctx context.Context, tables []byte, fn func([]Op) error) (Pos, error)
	// Trim drops the log up to and with upto.
	Trim(ctx context.Context, upto Pos) error
	// Session is this client's number in the store, never given twice.
	Session() uint64
	// Close commits what is pending, durably, and releases the store.
	Close() error
}
