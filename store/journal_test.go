package store

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"tgfs"
)

var someRecords = []record{
	{kind: recWrite, ino: 7, off: 1 << 40, len: 1, mtime: -5},
	{kind: recClean, ino: 7, spans: []span{{0, 1}, {1 << 30, 1<<30 + 5}}},
	{kind: recTrunc, ino: 1 << 60, off: 0, mtime: 1 << 60},
	{kind: recTrunced, ino: 9},
	{kind: recTimes, ino: 2, mtime: 1, ctime: -1},
	{kind: recDrop, ino: 3},
	{kind: recSlot, ino: 4, slot: 1<<32 - 1},
}

func writeJournal(t *testing.T) (path string, vol tgfs.VolumeID) {
	t.Helper()
	j := &journal{dir: t.TempDir(), vol: tgfs.NewVolumeID()}
	if err := j.start(1); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.append(someRecords[:2]...), j.append(someRecords[2:]...), j.sync(), j.close()); err != nil {
		t.Fatal(err)
	}
	return journalPath(j.dir, 1), j.vol
}

func readAll(path string, vol tgfs.VolumeID) (rs []record, err error) {
	err = readJournal(path, vol, func(r record) error { rs = append(rs, r); return nil })
	return rs, err
}

func TestJournalRoundTrip(t *testing.T) {
	path, vol := writeJournal(t)
	if got, err := readAll(path, vol); err != nil || !reflect.DeepEqual(got, someRecords) {
		t.Errorf("read %v, %v, want %v", got, err, someRecords)
	}
}

func TestATornJournalEndsAtItsLastWholeRecord(t *testing.T) {
	path, vol := writeJournal(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for n := len(whole); n >= 0; n-- {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readAll(path, vol)
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if len(got) > 0 && !reflect.DeepEqual(got, someRecords[:len(got)]) || last >= 0 && len(got) > last {
			t.Fatalf("cut at %d: %v", n, got)
		}
		last = len(got)
	}
	if last != 0 {
		t.Errorf("an empty journal has %d records", last)
	}
}

func TestAFlippedByteInTheJournalIsNeverARecord(t *testing.T) {
	path, vol := writeJournal(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		b := append([]byte(nil), whole...)
		b[i] ^= 0x10
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(path, vol); err == nil {
			t.Fatalf("byte %d flipped: %v and no error", i, got)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range someRecords {
		f.Add(r.encode(nil)[recordHead:])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := decodeRecord(p)
		if err != nil {
			if !errors.Is(err, tgfs.ErrCorrupt) {
				t.Errorf("%v does not wrap ErrCorrupt", err)
			}
			return
		}
		again, err := decodeRecord(r.encode(nil)[recordHead:])
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("%v encodes to %v, %v", r, again, err)
		}
	})
}
