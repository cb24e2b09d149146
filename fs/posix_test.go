package fs

import (
	"slices"
	"testing"

	"maps"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// TestPosix runs go-fuse's suite of what any filesystem does. One is left
// out, as go-fuse itself does: FcntlFlockLocksFile wants a process to be refused a
// lock that it holds itself, which no Linux filesystem does.
func TestPosix(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		if name == "FcntlFlockLocksFile" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			posixtest.All[name](t, newMount(t).dir)
		})
	}
}
