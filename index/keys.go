package index

import (
	"encoding/binary"

	"tgfs"
	"tgfs/index/kv"
)

// The tables. SCHEMA.md has the form of each record.
const (
	tVolume  = 'V' // the volume's identity
	tInode   = 'i' // inode → its record
	tTimes   = 't' // directory → counters: what creates and removes in it move
	tDentry  = 'd' // directory, name → inode
	tExtent  = 'e' // inode, end offset → extent, of files with many
	tXattr   = 'x' // inode, name → value
	tPack    = 'k' // pack id → where it is
	tLive    = 'l' // pack id → counter: live bytes
	tOrphan  = 'o' // session, inode → unlinked but open there; session 0: to be finished
	tSession = 'n' // session → since when
	tCount   = 'c' // counters of the volume
)

const (
	timeM = "m" // mtime, when it is newer than the record says
	timeC = "c" // ctime, likewise
	timeN = "n" // subdirectories

	countInodes = "inodes" // inodes in use
	countBytes  = "bytes"  // sum of Alloc
	countStored = "stored" // bytes of all packs
	countNext   = "next"   // first inode number never given out
)

func inodeKey(ino tgfs.Ino) kv.Key { return kv.Key{T: tInode, P: uint64(ino)} }

func timeKey(dir tgfs.Ino, which string) kv.Key { return kv.Key{T: tTimes, P: uint64(dir), S: which} }

func dentryKey(dir tgfs.Ino, name string) kv.Key {
	return kv.Key{T: tDentry, P: uint64(dir), S: name}
}

func extentKey(ino tgfs.Ino, end int64) kv.Key {
	return kv.Key{T: tExtent, P: uint64(ino), S: be(uint64(end))}
}

func xattrKey(ino tgfs.Ino, name string) kv.Key {
	return kv.Key{T: tXattr, P: uint64(ino), S: name}
}

func packKey(id tgfs.PackID) kv.Key { return kv.Key{T: tPack, S: string(id[:])} }

func liveKey(id tgfs.PackID) kv.Key { return kv.Key{T: tLive, S: string(id[:])} }

func orphanKey(session uint64, ino tgfs.Ino) kv.Key {
	return kv.Key{T: tOrphan, P: session, S: be(uint64(ino))}
}

func sessionKey(session uint64) kv.Key { return kv.Key{T: tSession, S: be(session)} }

func countKey(which string) kv.Key { return kv.Key{T: tCount, S: which} }

// be is a number as a sort key: 8 bytes, big endian, sorted as the number is.
func be(n uint64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return string(b[:])
}
