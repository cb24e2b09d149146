package fs

import (
	"slices"
	"testing"

	"maps"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// TestPosix runs go-fuse's suite of what any filesystem does. Nothing is left
// out.
func TestPosix(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			posixtest.All[name](t, newMount(t).dir)
		})
	}
}
