// Checks the emulator with a client that shares no code with gotd: one bot signs
// in, uploads, posts; another fetches the message and downloads the document.
// Usage: node check.mjs HOST PORT MEDIAPORT DC PEM CHANNEL MIB TOKEN TOKEN
import { createHash, createPublicKey, randomBytes, randomInt } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { MemoryStorage, TelegramClient } from '@mtcute/node'
import { __publicKeyIndex } from './node_modules/@mtcute/core/tl/binary/rsa-keys.js'
import Long from 'long'

const [host, port, mediaPort, dcId, pem, channelId, mib, ...tokens] = process.argv.slice(2)

// mtcute knows Telegram's own keys; ours is added by its fingerprint: the lower 64
// bits of SHA1 of the key as TL bytes.
const tlBytes = (b) => {
  const head = b.length < 254 ? Buffer.from([b.length]) : Buffer.from([254, b.length & 255, (b.length >> 8) & 255, b.length >> 16])
  return Buffer.concat([head, b, Buffer.alloc((4 - ((head.length + b.length) % 4)) % 4)])
}
const jwk = createPublicKey(readFileSync(pem)).export({ format: 'jwk' })
const n = Buffer.from(jwk.n, 'base64url')
const e = Buffer.from(jwk.e, 'base64url')
const sha1 = createHash('sha1').update(Buffer.concat([tlBytes(n), tlBytes(e)])).digest()
const fingerprint = Buffer.from(sha1.subarray(12)).reverse().toString('hex').replace(/^0+/, '')
__publicKeyIndex[fingerprint] = { modulus: n.toString('hex'), exponent: e.toString('hex'), fingerprint, old: false }

// mtcute moves files over several connections of one key, as is right at a DC's
// media address only.
const main = { ipAddress: host, port: +port, id: +dcId }
const media = { ipAddress: host, port: +mediaPort, id: +dcId, mediaOnly: true }
const signIn = async (botToken) => {
  const c = new TelegramClient({ apiId: 1, apiHash: 'hash', storage: new MemoryStorage(), defaultDcs: { main, media }, disableUpdates: true, logLevel: 1 })
  const me = await c.start({ botToken })
  if (String(me.id) !== botToken.split(':')[0]) throw new Error(`signed in as ${me.id}`)
  return c
}
const channel = async (c) => {
  const r = await c.call({ _: 'channels.getChannels', id: [{ _: 'inputChannel', channelId: +channelId, accessHash: Long.ZERO }] })
  return r.chats[0]
}

const [a, b] = await Promise.all(tokens.map(signIn))
const [ca, cb] = await Promise.all([a, b].map(channel))
if (ca.accessHash.eq(cb.accessHash)) throw new Error('two bots were given one access hash')

const data = randomBytes(+mib << 20)
const up = await a.uploadFile({ file: data, fileName: 'pack.bin', fileSize: data.length })
const res = await a.call({
  _: 'messages.sendMedia',
  peer: { _: 'inputPeerChannel', channelId: +channelId, accessHash: ca.accessHash },
  media: {
    _: 'inputMediaUploadedDocument', file: up.inputFile, mimeType: 'application/octet-stream', forceFile: true,
    attributes: [{ _: 'documentAttributeFilename', fileName: 'pack.bin' }],
  },
  message: 'from mtcute',
  randomId: Long.fromBits(randomInt(2 ** 31), randomInt(2 ** 31)),
})
const id = res.updates.find((u) => u._ === 'updateMessageID').id

const got = await b.call({
  _: 'channels.getMessages',
  channel: { _: 'inputChannel', channelId: +channelId, accessHash: cb.accessHash },
  id: [{ _: 'inputMessageID', id }],
})
const msg = got.messages[0]
if (msg.message !== 'from mtcute') throw new Error(`caption is ${msg.message}`)
const d = msg.media.document
const file = { _: 'inputDocumentFileLocation', id: d.id, accessHash: d.accessHash, fileReference: d.fileReference, thumbSize: '' }
const back = Buffer.from(await b.downloadAsBuffer(file, { fileSize: Number(d.size), dcId: d.dcId }))
await Promise.all([a.destroy(), b.destroy()])

if (Buffer.compare(back, data) !== 0) throw new Error(`downloaded ${back.length} bytes differ from the ${data.length} uploaded`)
console.log(`equal: ${back.length} bytes, message ${id}`)
process.exit(0)
