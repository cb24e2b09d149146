package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

// staged asks a mount how many bytes are not yet in Telegram.
func staged(t *testing.T, w *harness.World) int64 {
	t.Helper()
	var st struct {
		Store struct {
			Staged int64 `json:"staged_bytes"`
		} `json:"store"`
	}
	if err := json.Unmarshal([]byte(w.Tgfs("status", "--json", w.Mnt)), &st); err != nil {
		t.Fatal(err)
	}
	return st.Store.Staged
}

func TestSyncAndStatus(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 2, TOML: "[stage]\nquiet = \"1h\"\nmax_age = \"1h\"\n"})
	w.Mount()
	if err := harness.WriteRandom(w.Path("a"), 1, 3*mib); err != nil {
		t.Fatal(err)
	}
	if n := staged(t, w); n < 3*mib {
		t.Errorf("%d bytes staged after a write of 3 MiB", n)
	}
	w.Tgfs("sync", w.Mnt)
	if n := staged(t, w); n != 0 {
		t.Errorf("%d bytes staged after sync", n)
	}
	table := w.Tgfs("status", w.Mnt)
	for _, want := range []string{"volume", "stage", "cache", "index", "BOT", "ready"} {
		if !strings.Contains(table, want) {
			t.Errorf("status does not say %q:\n%s", want, table)
		}
	}
	secrets := w.Tgfs("status", "--json", w.Mnt) + table + w.Log()
	for i := range w.Srv.Bots() {
		_, secret, _ := strings.Cut(w.Srv.Token(i), ":")
		if strings.Contains(secrets, secret) {
			t.Errorf("the token of bot %d is told", i)
		}
	}
}

// A busy mount is not unmounted, says who uses it, and goes on; nothing is lost.
func TestUmountBusy(t *testing.T) {
	w := harness.New(t, harness.Options{})
	w.Mount()
	if err := os.WriteFile(w.Path("a"), []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "60")
	sleep.Dir = w.Mnt
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	r := w.Run("umount", w.Mnt)
	if r.Code != 1 || !strings.Contains(r.Stderr, "busy") || !strings.Contains(r.Stderr, "sleep") {
		t.Errorf("umount of a busy mount: exit code %d, %q", r.Code, r.Stderr)
	}
	if b, err := os.ReadFile(w.Path("a")); err != nil || string(b) != "here" {
		t.Errorf("after the refusal a = %q, %v", b, err)
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait() // killed
	w.Umount()
}

// A signal uploads what is staged and unmounts.
func TestSignalUnmounts(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		w := harness.New(t, harness.Options{TOML: "[stage]\nquiet = \"1h\"\nmax_age = \"1h\"\n"})
		w.Mount()
		if err := harness.WriteRandom(w.Path("a"), 1, mib); err != nil {
			t.Fatal(err)
		}
		w.Signal(sig)
		if code := w.Wait(30 * time.Second); code != 0 {
			t.Errorf("%v: exit code %d\n%s", sig, code, w.Log())
		}
		w.DropLocal()
		w.Mount()
		if err := harness.CheckRandom(w.Path("a"), 1, mib); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		w.Umount()
	}
}

// A second signal leaves the bytes in the stage, and so does umount --detach:
// the next mount has them and uploads them.
func TestLeftStaged(t *testing.T) {
	const slow = 64 << 10
	for name, leave := range map[string]func(w *harness.World){
		"second signal": func(w *harness.World) {
			w.Signal(syscall.SIGTERM)
			time.Sleep(time.Second)
			w.Signal(syscall.SIGTERM)
		},
		"detach": func(w *harness.World) { w.Umount("--detach") },
	} {
		t.Run(name, func(t *testing.T) {
			w := harness.New(t, harness.Options{Link: tgemu.Link{Bandwidth: slow}})
			w.Mount()
			if err := harness.WriteRandom(w.Path("a"), 1, 4*mib); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			leave(w)
			if code := w.Wait(30 * time.Second); code != 0 {
				t.Errorf("exit code %d\n%s", code, w.Log())
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("leaving took %v: it waited for the upload", took)
			}
			w.Srv.SetLink(0, tgemu.Link{})
			w.Mount()
			if err := harness.CheckRandom(w.Path("a"), 1, 4*mib); err != nil {
				t.Error(err)
			}
			w.Umount()
			w.DropLocal()
			w.Mount()
			if err := harness.CheckRandom(w.Path("a"), 1, 4*mib); err != nil {
				t.Error(err)
			}
		})
	}
}

// --background returns when the mount serves; umount waits for its end.
func TestBackground(t *testing.T) {
	w := harness.New(t, harness.Options{})
	w.Tgfs("mount", "--background", "--config", w.Config, "--state-dir", w.State, "--cache-dir", w.Cache, w.Mnt)
	if !harness.Serves(w.Mnt) {
		t.Fatal("mount --background returned before the mount serves")
	}
	if err := os.WriteFile(w.Path("a"), []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	var st struct{ PID int }
	if err := json.Unmarshal([]byte(w.Tgfs("status", "--json", w.Mnt)), &st); err != nil || st.PID == 0 {
		t.Fatalf("status: pid %d, %v", st.PID, err)
	}
	w.Tgfs("umount", w.Mnt)
	if err := syscall.Kill(st.PID, 0); err == nil {
		// It may be a zombie when nobody reaps orphans here; it must not run.
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", st.PID))
		if !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d is still there after umount", st.PID)
		}
	}
	if r := w.Run("umount", w.Mnt); r.Code != 2 || !strings.Contains(r.Stderr, "not a mounted") {
		t.Errorf("umount of what is not mounted: exit code %d, %q", r.Code, r.Stderr)
	}
}
