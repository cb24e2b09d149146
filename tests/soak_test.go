package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tgfs/tests/harness"
)

// soak skips what takes long, unless it is asked for with make soak, which also
// installs what it needs.
func soak(t *testing.T) {
	t.Helper()
	if os.Getenv("TGFS_SOAK") == "" {
		t.Skip("takes long: make soak")
	}
}

func TestSoakRandomOperations(t *testing.T) {
	soak(t)
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { exercise(t, seed, 100_000) })
	}
}

// stressors are those of stress-ng that work on files.
const stressors = `access acl chdir chmod chown copy-file dentry dir dirdeep dirmany dup
	fallocate fcntl file-ioctl filename flock fpunch fsize fstat getdent hdd inode-flags
	iomix link locka lockf lockofd lockmix metamix mknod mmap open readahead rename revio seek sendfile
	symlink sync-file touch truncate unlink utime xattr`

func TestSoakStress(t *testing.T) {
	soak(t)
	w := harness.New(t, harness.Options{Bots: 4})
	w.Mount()
	for _, name := range strings.Fields(stressors) {
		t.Run(name, func(t *testing.T) {
			dir := w.Path(name)
			must(t, os.Mkdir(dir, 0o777))
			out, err := exec.Command("stress-ng", "--"+name, "2", "--verify", "--timeout", "5s", "--temp-path", dir,
				"--hdd-bytes", "32m", "--iomix-bytes", "32m", "--fallocate-bytes", "32m", "--seek-size", "32m",
				"--readahead-bytes", "32m").CombinedOutput()
			const notHere = 4 // not implemented, or not known to this version
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && (exit.ExitCode() == notHere || strings.Contains(string(out), "nrecognized option")) {
				t.Skipf("%s", out)
			}
			if err != nil || strings.Contains(string(out), "fail:") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	w.Umount()
	w.Fsck()
}

// A PostgreSQL cluster is made on the mount and written to for a minute. Each
// commit is synced; with fsync off it would be no test of that, and with an upload
// for each no test of anything else: so commits are synced in the background.
func TestSoakPostgres(t *testing.T) {
	soak(t)
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatal("PostgreSQL is not installed: scripts/deps soak")
	}
	bin := found[len(found)-1]
	w := harness.New(t, harness.Options{Bots: 4})
	w.Mount()
	must(t, os.Chmod(w.Dir, 0o755))
	must(t, os.Chmod(filepath.Dir(w.Dir), 0o755))
	data := w.Path("pg")
	must(t, os.Mkdir(data, 0o700))
	output(t, w.Mnt, "chown", "postgres", data)
	as := func(args ...string) string {
		t.Helper()
		return output(t, data, "runuser", append([]string{"-u", "postgres", "--"}, args...)...)
	}
	sock, err := os.MkdirTemp("", "pg") // a socket's path may not be long
	must(t, err)
	defer os.RemoveAll(sock)
	must(t, os.Chmod(sock, 0o777))
	as(bin+"/initdb", "-D", data, "--auth", "trust", "--no-sync")
	as(bin+"/pg_ctl", "-D", data, "-w", "-t", "120", "-l", sock+"/log", "-o", "-k "+sock+" -c listen_addresses= -c synchronous_commit=off -c max_wal_size=256MB", "start")
	as(bin+"/createdb", "-h", sock, "bench")
	as(bin+"/pgbench", "-h", sock, "-i", "-q", "-s", "2", "bench")
	t.Log(as(bin+"/pgbench", "-h", sock, "-c", "4", "-T", "60", "bench"))
	as(bin+"/pg_ctl", "-D", data, "-w", "-t", "300", "stop")
	w.Umount()
	w.DropLocal()
	w.Mount()
	as(bin+"/pg_ctl", "-D", data, "-w", "-t", "120", "-l", sock+"/log", "-o", "-k "+sock+" -c listen_addresses=", "start")
	sum := "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)"
	if got := strings.TrimSpace(as(bin+"/psql", "-h", sock, "-At", "-c", sum, "bench")); got != "t" {
		t.Errorf("the sums are equal: %q", got)
	}
	as(bin+"/pg_ctl", "-D", data, "-w", "-t", "300", "stop")
}
