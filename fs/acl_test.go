package fs

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// run runs a program, which must be there (scripts/deps) and succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func getfacl(t *testing.T, path string) string {
	t.Helper()
	return strings.Join(strings.Fields(run(t, "getfacl", "-cnEp", path)), " ")
}

func TestACLs(t *testing.T) {
	m := newMount(t)
	path := m.path("f")
	must(t, os.WriteFile(path, []byte("secret"), 0o600))
	read := func(uid int) (err error) {
		asUser(t, uid, uid, func() { _, err = os.ReadFile(path) })
		return err
	}
	if err := read(1000); !os.IsPermission(err) {
		t.Errorf("before: %v", err)
	}
	run(t, "setfacl", "-m", "u:1000:rw,g:77:r", path)
	if got, want := getfacl(t, path), "user::rw- user:1000:rw- group::--- group:77:r-- mask::rw- other::---"; got != want {
		t.Errorf("ACL %q, want %q", got, want)
	}
	if mode := lstat(t, path).Mode & 0o777; mode != 0o660 {
		t.Errorf("mode %o, want 660", mode)
	}
	if err := read(1000); err != nil {
		t.Errorf("a user named in the ACL: %v", err)
	}
	if err := read(1001); !os.IsPermission(err) {
		t.Errorf("another user: %v", err)
	}
	must(t, os.Chmod(path, 0o600))
	if got, want := getfacl(t, path), "user::rw- user:1000:rw- group::--- group:77:r-- mask::--- other::---"; got != want {
		t.Errorf("after chmod: ACL %q, want %q", got, want)
	}
	if err := read(1000); !os.IsPermission(err) {
		t.Errorf("a user whom the mask keeps out: %v", err)
	}
	run(t, "setfacl", "-b", path)
	if n, err := unix.Listxattr(path, nil); n != 0 || err != nil {
		t.Errorf("attributes left without an ACL: %d bytes, %v", n, err)
	}
}

func TestDefaultACLs(t *testing.T) {
	m := newMount(t)
	dir := m.path("d")
	must(t, os.Mkdir(dir, 0o755))
	run(t, "setfacl", "-d", "-m", "u::rwx,g::r-x,o::-,u:1000:rwx", dir)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	must(t, os.WriteFile(dir+"/f", nil, 0o666))
	must(t, os.Mkdir(dir+"/sub", 0o777))
	must(t, unix.Mkfifo(dir+"/p", 0o666))
	must(t, os.WriteFile(m.path("outside"), nil, 0o666))
	const leaf = "user::rw- user:1000:rwx group::r-x mask::rw- other::---"
	for name, want := range map[string]string{
		"f": leaf, "p": leaf,
		"sub": "user::rwx user:1000:rwx group::r-x mask::rwx other::--- " +
			"default:user::rwx default:user:1000:rwx default:group::r-x default:mask::rwx default:other::---",
	} {
		if got := getfacl(t, dir+"/"+name); got != want {
			t.Errorf("%s: ACL %q, want %q", name, got, want)
		}
	}
	if mode := lstat(t, m.path("outside")).Mode & 0o777; mode != 0o600 {
		t.Errorf("without a default ACL the umask counts: mode %o", mode)
	}
	run(t, "setfacl", "-k", dir)
	if got, want := getfacl(t, dir), "user::rwx group::r-x other::r-x"; got != want {
		t.Errorf("after setfacl -k: %q, want %q", got, want)
	}
}
