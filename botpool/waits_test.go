package botpool

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestBudgetHoldsInEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(20, 0, time.Time{})
		var at []time.Time
		for range 100 {
			if err := b.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			at = append(at, time.Now())
			time.Sleep(500 * time.Millisecond)
		}
		for i := 20; i < len(at); i++ {
			if d := at[i].Sub(at[i-20]); d < time.Minute {
				t.Fatalf("posts %d to %d, 21 of them, came within %v", i-20, i, d)
			}
		}
		if d := at[99].Sub(at[0]); d > 5*time.Minute {
			t.Errorf("100 posts took %v: the budget is not used up", d)
		}
	})
}

func TestBudgetIsLearnt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(20, 0, time.Time{})
		for range 11 {
			_ = b.wait(t.Context())
		}
		if n := b.refused(); n != 10 {
			t.Errorf("refused at the 11th post: %d a minute, want 10", n)
		}
		if n := b.refused(); n != 0 {
			t.Errorf("refused again at once: changed to %d", n)
		}
		time.Sleep(2 * time.Minute)
		if n := b.refused(); n != 5 {
			t.Errorf("refused without posts: %d a minute, want a quarter of 20", n)
		}
		time.Sleep(budgetRaise)
		_ = b.wait(t.Context())
		if n := b.perMinute(); n != 6 {
			t.Errorf("%d a minute after %v of peace, want 6", n, budgetRaise)
		}
	})
}

func TestBudgetOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, start := newBudget(-1, 3, time.Now()), time.Now()
		for range 1000 {
			_ = b.wait(t.Context())
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("without a budget, posts waited %v", d)
		}
	})
}

func TestWaitsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	h, err := openHome(dir, 1, 42)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour).Round(0)
	w := openWaits(h)
	if err := w.set(famUpload, until); err != nil {
		t.Fatal(err)
	}
	if err := w.set(famUpload, until.Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := w.set(famFetch, time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := w.learn(7, until); err != nil {
		t.Fatal(err)
	}
	got := map[family]time.Time{}
	w = openWaits(h)
	w.each(func(f family, t time.Time) { got[f] = t })
	if len(got) != 1 || !got[famUpload].Equal(until) {
		t.Errorf("waits read back: %v, want upload until %v: never shortened, and none that is over", got, until)
	}
	if n, at := w.learnt(); n != 7 || !at.Equal(until) {
		t.Errorf("posts a minute read back: %d at %v", n, at)
	}
	if _, err := openHome(dir, 1, 42); !isInput(err) {
		t.Errorf("a second lock: %v, want an input error", err)
	}
	if err := h.close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, "bot-42.waits": 0o600, "bot-42.lock": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", name, st.Mode().Perm(), err, want)
		}
	}
}

func TestSpoiltWaitsCountAsNone(t *testing.T) {
	h, err := openHome(t.TempDir(), 1, 42)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	if err := h.write("waits", []byte(`{"until":{"upload":`)); err != nil {
		t.Fatal(err)
	}
	openWaits(h).each(func(f family, at time.Time) { t.Errorf("a wait out of nothing: %v until %v", f, at) })
	if b, err := h.LoadSession(context.Background()); err == nil {
		t.Errorf("a session out of nothing: %q", b)
	}
}
