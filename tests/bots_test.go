package tests

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

// One big file goes up over all bots at once, and comes down over several.
func TestAllBotsCarryOneFile(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 6, Link: tgemu.Link{Bandwidth: 8 * mib}})
	w.Mount()
	const size = 96 * mib
	if err := harness.WriteRandom(w.Path("big"), 2, size); err != nil {
		t.Fatal(err)
	}
	w.Tgfs("sync", w.Mnt)
	for i := range 6 {
		if up := w.Srv.Stats().Bots[i].BytesUp; up < size/12 {
			t.Errorf("bot %d carried %d of %d bytes up", i, up, size)
		}
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	before := w.Srv.Stats()
	if err := harness.CheckRandom(w.Path("big"), 2, size); err != nil {
		t.Error(err)
	}
	after := w.Srv.Stats()
	for i := range 6 {
		if down := after.Bots[i].BytesDown - before.Bots[i].BytesDown; down < size/24 {
			t.Errorf("bot %d carried %d of %d bytes down", i, down, size)
		}
	}
}

// While one bot is told to wait for a minute, nothing on the mount fails, and
// the other bots carry what it would have.
func TestFloodWaitOneBot(t *testing.T) {
	const bots, size = 6, 60 * mib
	link := tgemu.Link{Bandwidth: 4 * mib}
	w := harness.New(t, harness.Options{Bots: bots, Link: link})
	w.Mount()
	if err := w.Srv.Inject(tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Seconds: 60}); err != nil {
		t.Fatal(err)
	}

	began := time.Now()
	var wg sync.WaitGroup
	errs := make(chan error, bots)
	for i := range bots {
		wg.Go(func() { errs <- harness.WriteRandom(w.Path(fmt.Sprintf("f%d", i)), uint64(i), size/bots) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Errorf("write while a bot waits: %v", err)
		}
	}
	w.Tgfs("sync", w.Mnt)
	took := time.Since(began)
	for i := range bots {
		if err := harness.CheckRandom(w.Path(fmt.Sprintf("f%d", i)), uint64(i), size/bots); err != nil {
			t.Error(err)
		}
	}
	st := w.Srv.Stats()
	if st.FloodWaits == 0 {
		t.Error("the fault was never met: the test shows nothing")
	}
	t.Logf("%d MiB in %v, %.1f MiB/s over %d bots of 4 MiB/s; %d flood waits, %d violated",
		size/mib, took.Round(time.Millisecond), size/mib/took.Seconds(), bots-1, st.FloodWaits, st.WaitsViolated)
	if took > 45*time.Second {
		t.Errorf("it took %v: somebody waited for the bot that waits", took)
	}
}
