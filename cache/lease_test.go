package cache

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/index/kv/redis/redistest"
)

// A holder who died is replaced when his lease ends: three seconds.
func TestDeadHolderIsReplaced(t *testing.T) {
	s := redistest.Start(t)
	o, a, _ := shareTest(t, Shared{URL: s.URL()})
	if who, _, err := a.shared.take(t.Context(), lineKey(lineOf(line0(0)))+":lease", "h:dead"); who != "" || err != nil {
		t.Fatal(who, err)
	}
	began := time.Now()
	read(t, a, o, line0(0))
	if took := time.Since(began); took < 2500*time.Millisecond || took > 3200*time.Millisecond {
		t.Errorf("replaced after %v", took)
	}
	if n := o.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// A living holder keeps his lease beyond its time.
func TestLivingHolderKeepsTheLease(t *testing.T) {
	s := redistest.Start(t)
	cfg := quick(s.URL())
	cfg.Timeout = 2 * time.Second // so that the other waits longer than a lease
	o, a, b := shareTest(t, cfg)
	o.hold = make(chan struct{})
	errs := make(chan error, 2)
	go func() { _, err := a.Get(t.Context(), line0(0)); errs <- err }()
	waitFor(t, func() bool { return o.fetches.Load() == 1 })
	go func() { _, err := b.Get(t.Context(), line0(0)); errs <- err }()
	time.Sleep(2 * cfg.Lease)
	close(o.hold)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := o.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
	if st := b.Stats().Shared; st.LeaseWaits < 3 {
		t.Errorf("%+v", st)
	}
}

// Nobody waits for another host longer than twice the time-out and a lease.
func TestWaitingIsBounded(t *testing.T) {
	s := redistest.Start(t)
	cfg := quick(s.URL())
	o, a, b := shareTest(t, cfg)
	stuck := make(chan struct{})
	o.hold = stuck
	done := make(chan error, 1)
	go func() { _, err := a.Get(t.Context(), line0(0)); done <- err }()
	waitFor(t, func() bool { return o.fetches.Load() == 1 })
	o.set(func() { o.hold = nil })
	began := time.Now()
	read(t, b, o, line0(0))
	bound := 2*cfg.Timeout + cfg.Lease
	if took := time.Since(began); took < bound-50*time.Millisecond || took > bound+300*time.Millisecond {
		t.Errorf("waited %v, the bound is %v", took, bound)
	}
	close(stuck)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What a holder failed with is the other host's error for a while, and of the
// same kind; then that host tries itself.
func TestHoldersErrorIsShared(t *testing.T) {
	s := redistest.Start(t)
	cfg := quick(s.URL())
	o, a, b := shareTest(t, cfg)
	for n, fail := range []error{syscall.EIO, tgfs.ErrCorrupt} {
		before := o.fetches.Load()
		o.set(func() { o.fail = fail })
		if _, err := a.Get(t.Context(), line0(n)); !errors.Is(err, fail) {
			t.Fatal(err)
		}
		o.set(func() { o.fail = nil })
		_, err := b.Get(t.Context(), line0(n))
		if err == nil || errors.Is(err, tgfs.ErrCorrupt) != errors.Is(fail, tgfs.ErrCorrupt) {
			t.Errorf("the other host got %v, want %v", err, fail)
		}
		if got := o.fetches.Load() - before; got != 1 {
			t.Errorf("%d fetches", got)
		}
		time.Sleep(cfg.ErrorLife + 50*time.Millisecond)
		read(t, b, o, line0(n))
	}
}

// A holder whose readers have left gives the lease back at once.
func TestHolderWhoLeavesGivesTheLeaseBack(t *testing.T) {
	s := redistest.Start(t)
	o, a, b := shareTest(t, Shared{URL: s.URL()})
	o.hold = make(chan struct{})
	done := make(chan error, 1)
	go func() { _, err := a.Get(t.Context(), line0(0)); done <- err }()
	waitFor(t, func() bool { return o.fetches.Load() == 1 })
	o.set(func() { o.hold = nil })
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, tgfs.ErrClosed) {
		t.Error(err)
	}
	began := time.Now()
	read(t, b, o, line0(0))
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("waited %v for a holder who had left", took)
	}
}
