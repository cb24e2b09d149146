package tgfs

import "testing"

func TestIDsRoundTrip(t *testing.T) {
	v := NewVolumeID()
	if got, err := ParseVolumeID(v.String()); err != nil || got != v {
		t.Errorf("ParseVolumeID(%q) = %v, %v, want %v", v.String(), got, err, v)
	}
	p := NewPackID()
	if got, err := ParsePackID(p.String()); err != nil || got != p {
		t.Errorf("ParsePackID(%q) = %v, %v, want %v", p.String(), got, err, p)
	}
}

func TestBadIDsAreRefused(t *testing.T) {
	for _, s := range []string{"", "00", "zz000000-0000-4000-8000-000000000000", "00000000x0000-4000-8000-000000000000", NewPackID().String()} {
		if id, err := ParseVolumeID(s); err == nil {
			t.Errorf("ParseVolumeID(%q) = %v, want an error", s, id)
		}
	}
	for _, s := range []string{"", "00", "zz" + NewPackID().String()[2:], NewVolumeID().String()} {
		if id, err := ParsePackID(s); err == nil {
			t.Errorf("ParsePackID(%q) = %v, want an error", s, id)
		}
	}
}
