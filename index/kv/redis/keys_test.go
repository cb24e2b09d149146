package redis

import (
	"bytes"
	"strings"
	"testing"
)

// Members sort as their sort keys do, whatever their values, and are read back.
func FuzzMember(f *testing.F) {
	f.Add("a", "a\x00", []byte("v"), []byte(""))
	f.Add("a\x00b", "a\x01", []byte("\x00"), []byte("\xff"))
	f.Add("\x01", "\x00", []byte("\x01\x02"), []byte{})
	f.Add("é", "\xff\xff", []byte("x"), []byte("y"))
	f.Fuzz(func(t *testing.T, a, b string, va, vb []byte) {
		if a == "" || b == "" {
			return
		}
		ma, mb := member(a, va), member(b, vb)
		if got, err := parseMember(ma); err != nil || got.S != a || !bytes.Equal(got.V, va) {
			t.Errorf("parseMember(%q) = %q, %v, want %q, %q", ma, got, err, a, va)
		}
		if a != b && strings.Compare(ma, mb) != strings.Compare(a, b) {
			t.Errorf("%q and %q sort otherwise than %q and %q", ma, mb, a, b)
		}
		// What scripts look for: the one member of a key, and those after it.
		if lo, hi := escape(a)+"\x00", escape(a)+"\x01"; (lo <= mb && mb < hi) != (a == b) {
			t.Errorf("%q is taken for a member of %q", mb, a)
		}
		if (scanFrom(a) <= mb) != (b > a) {
			t.Errorf("a scan after %q finds %q", a, mb)
		}
	})
}

// What is no member or record is refused, or is what it would be written as.
func FuzzParse(f *testing.F) {
	f.Add("a\x00v")
	f.Add("\x01\x02\x00")
	f.Add("\x01\x04\x00")
	f.Add("\x00v")
	f.Add("\x80\x01\x05value")
	f.Add("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	f.Fuzz(func(t *testing.T, raw string) {
		if m, err := parseMember(raw); err == nil && member(m.S, m.V) != raw {
			t.Errorf("parseMember(%q) = %q", raw, m)
		}
		if ver, v, err := splitVersion(raw); err == nil && (ver == "" || ver+v != raw) {
			t.Errorf("splitVersion(%q) = %q, %q", raw, ver, v)
		}
		if p, ok := parsePlace("{v}", raw); ok && p.t == 0 && p.name("{v}") == "" {
			t.Error("no name")
		}
	})
}

func TestPlaceNames(t *testing.T) {
	for _, p := range []place{{kindOwn, 'i', 1}, {kindSorted, 0, 0}, {kindCounter, 255, 1<<64 - 1}, {kindSorted, '!', 35}, {kindOwn, '*', 36}} {
		name := p.name("{v}")
		if got, ok := parsePlace("{v}", name); !ok || got != p {
			t.Errorf("parsePlace(%q) = %v, %v, want %v", name, got, ok, p)
		}
	}
	for _, name := range []string{"{v}!meta", "{v}!slots:1", "{w}si1", "{v}", "{v}xi1", "{v}si", "{v}si-1"} {
		if p, ok := parsePlace("{v}", name); ok {
			t.Errorf("parsePlace(%q) = %v", name, p)
		}
	}
}

// A version is found again, and none begins another.
func TestVersions(t *testing.T) {
	var all []string
	for _, session := range []uint64{1, 2, 127, 128, 1 << 20} {
		for _, n := range []uint64{1, 127, 128, 300, 1<<64 - 1} {
			v := string(version(session, n))
			ver, rest, err := splitVersion(v + "\x00value")
			if err != nil || ver != v || rest != "\x00value" {
				t.Errorf("splitVersion(%x) = %x, %q, %v", v, ver, rest, err)
			}
			for _, o := range all {
				if strings.HasPrefix(o, v) || strings.HasPrefix(v, o) {
					t.Errorf("version %x begins %x", v, o)
				}
			}
			all = append(all, v)
		}
	}
}
