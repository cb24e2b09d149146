package redis

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"tgfs"
	"tgfs/index/kv"
)

// What a volume occupies on the server. Each name begins with the volume's tag
// in braces, so that in a cluster all of them lie on one node, where one script
// may use them together.
//
//	{NAME}!meta       hash    format, epoch, seq, session, bytes, cut, trimmed
//	{NAME}!log        stream  0-SEQ: r writes, k counters' keys, n their values, b bytes
//	{NAME}!sessions   hash    session → when it was last heard of (server's clock, ms)
//	{NAME}!slots:N    hash    of session N: e; slot → last commit made through it
//	{NAME}sTP         string  record with an empty sort key
//	{NAME}zTP         zset    records with a sort key, ordered by it; all scores 0
//	{NAME}hTP         hash    counters by sort key, as decimal numbers
//
// T is the table's byte, P the partition in base 36. The form is FormatVersion.
const (
	kindOwn     = 's'
	kindSorted  = 'z'
	kindCounter = 'h'
)

// place is a key of the server that holds records.
type place struct {
	kind byte
	t    byte
	p    uint64
}

func placeOf(k kv.Key, counter bool) place {
	switch {
	case counter:
		return place{kindCounter, k.T, k.P}
	case k.S == "":
		return place{kindOwn, k.T, k.P}
	}
	return place{kindSorted, k.T, k.P}
}

// name is the place's key on the server.
func (p place) name(tag string) string {
	b := make([]byte, 0, len(tag)+16)
	b = append(b, tag...)
	b = append(b, p.kind, p.t)
	return string(strconv.AppendUint(b, p.p, 36))
}

// parsePlace reads a key of the server; ok is false when it holds no records.
func parsePlace(tag, name string) (p place, ok bool) {
	rest, ok := strings.CutPrefix(name, tag)
	if !ok || len(rest) < 3 || rest[0] == '!' {
		return place{}, false
	}
	p = place{kind: rest[0], t: rest[1]}
	n, err := strconv.ParseUint(rest[2:], 36, 64)
	if err != nil || p.kind != kindOwn && p.kind != kindSorted && p.kind != kindCounter {
		return place{}, false
	}
	p.p = n
	return p, true
}

// A member of a sorted partition is the escaped sort key, a NUL, and the value.
// Escaped, a key has no NUL and keeps its place in the order of bytes: NUL and
// 1 become 1 2 and 1 3. So members sort as their keys do, and those of one key
// are those that begin with it and a NUL.

func escape(s string) string {
	if !strings.ContainsAny(s, "\x00\x01") {
		return s
	}
	b := make([]byte, 0, len(s)+8)
	for i := range len(s) {
		if c := s[i]; c <= 1 {
			b = append(b, 1, c+2)
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func unescape(s string) (string, bool) {
	if !strings.Contains(s, "\x01") {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == 1 {
			if i++; i == len(s) || s[i] != 2 && s[i] != 3 {
				return "", false
			}
			c = s[i] - 2
		}
		b = append(b, c)
	}
	return string(b), true
}

func member(s string, v []byte) string {
	e := escape(s)
	b := make([]byte, 0, len(e)+1+len(v))
	b = append(b, e...)
	b = append(b, 0)
	return string(append(b, v...))
}

// parseMember returns the sort key and the value; the value is a copy.
func parseMember(m string) (kv.KV, error) {
	e, v, ok := strings.Cut(m, "\x00")
	s, valid := unescape(e)
	if !ok || !valid || s == "" {
		return kv.KV{}, fmt.Errorf("record %q: %w", m, tgfs.ErrCorrupt)
	}
	return kv.KV{S: s, V: []byte(v)}, nil
}

// scanFrom is the least member of the sort keys after the given one.
func scanFrom(after string) string {
	if after == "" {
		return ""
	}
	return escape(after) + "\x01"
}

// A record with an empty sort key begins with its version: the session and the
// number of the commit that wrote it, as uvarints. A version is never given
// twice, so a commit that read the record fails when it was written meanwhile,
// even with the same bytes; all that is kept under such a record may rely on it.

func version(session, txid uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, session), txid)
}

// splitVersion returns the version and the value in it; they alias raw.
func splitVersion(raw string) (ver, v string, err error) {
	b := []byte(raw[:min(len(raw), 2*binary.MaxVarintLen64)])
	_, n := binary.Uvarint(b)
	if n > 0 {
		if _, m := binary.Uvarint(b[n:]); m > 0 {
			return raw[:n+m], raw[n+m:], nil
		}
	}
	return "", "", fmt.Errorf("record without a version: %w", tgfs.ErrCorrupt)
}
