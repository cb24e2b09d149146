package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// size is a number of bytes, written like "10GiB"; a bare number in the config
// is bytes.
type size int64

// units in the order in which their suffixes must be tried.
var units = []struct {
	name string
	n    int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

// UnmarshalText reads a size: a number, and a unit from B to TiB.
func (s *size) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || !(n >= 0) || n*float64(u.n) > math.MaxInt64/2 {
			break
		}
		*s = size(n * float64(u.n))
		return nil
	}
	return fmt.Errorf("%q is no size: write it like \"512MiB\" or \"10GiB\"", text)
}

// duration is a time span, written like "2s". It is a struct so that a bare
// number in the config is refused: seconds or nanoseconds?
type duration struct{ time.Duration }

// UnmarshalText reads what time.ParseDuration reads, if it is positive.
func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v <= 0 {
		return fmt.Errorf("%q is no time span: write it like \"500ms\", \"2s\" or \"1m\"", b)
	}
	d.Duration = v
	return nil
}
