package tgemu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// A journal is the world's memory: a file of records "kind, key, value", the
// latest of each kind and key counting. An append has reached the page cache when
// it returns, so it outlives the process (not the machine). A torn last line,
// which a kill may leave, is dropped; opening writes the file anew without the
// records that later ones replaced.
type journal struct {
	f   *os.File
	err error // the first failed append; the world is read-only from then on
}

type record struct {
	Kind string          `json:"k"`
	Key  string          `json:"i"`
	Val  json.RawMessage `json:"v,omitempty"` // absent: the key is gone
}

// records are the live records by kind and key.
type records map[string]map[string]json.RawMessage

func openJournal(path string) (*journal, records, error) {
	live, err := readJournal(path)
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	for kind, m := range live {
		for key, v := range m {
			line(&b, record{kind, key, v})
		}
	}
	if err := writeFile(path, b.Bytes()); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return &journal{f: f}, live, nil
}

func readJournal(path string) (records, error) {
	live := records{}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return live, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	for n := 1; ; n++ {
		l, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return live, nil
		}
		if err != nil {
			return nil, err
		}
		var rec record
		if err := json.Unmarshal(l, &rec); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		m := live[rec.Kind]
		if m == nil {
			m = map[string]json.RawMessage{}
			live[rec.Kind] = m
		}
		if rec.Val == nil {
			delete(m, rec.Key)
		} else {
			m[rec.Key] = rec.Val
		}
	}
}

func line(b *bytes.Buffer, r record) {
	l, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record is plain strings and JSON
	}
	b.Write(l)
	b.WriteByte('\n')
}

// A batch gathers records that must be there together or not at all: one write,
// and a torn one is cut at its first whole line, so put the record that makes the
// others count last.
type batch struct{ b bytes.Buffer }

func (w *batch) put(kind, key string, v any) *batch {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	line(&w.b, record{kind, key, raw})
	return w
}

func (w *batch) del(kind, key string) *batch {
	line(&w.b, record{Kind: kind, Key: key})
	return w
}

// commit appends a batch. Callers hold the lock that orders the changes.
func (j *journal) commit(w *batch) error {
	if j.err != nil {
		return j.err
	}
	_, err := j.f.Write(w.b.Bytes())
	j.err = err
	return err
}

func (j *journal) close() error {
	err := j.f.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil // closed before
	}
	if j.err != nil {
		err = j.err
	}
	return err
}
