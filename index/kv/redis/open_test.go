package redis_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tgfs"
	"tgfs/index/kv"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

func do(t *testing.T, srv *redistest.Server, words ...string) {
	t.Helper()
	if out, err := srv.Do(words...); err != nil || strings.HasPrefix(out, "-") {
		t.Fatalf("%q: %s, %v", words, out, err)
	}
}

// wantInput opens a store that must be refused in one line with these words.
func wantInput(t *testing.T, url, name string, cfg redis.Config, words ...string) {
	t.Helper()
	cfg.Log, cfg.ConnectTimeout = quiet, 500*time.Millisecond
	s, err := redis.Open(bg, url, name, cfg)
	if err == nil {
		_ = s.Close()
	}
	in, ok := errors.AsType[*tgfs.InputError](err)
	if !ok {
		t.Errorf("Open(%q): %v, want an InputError", url, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(in.Msg, w) {
			t.Errorf("Open(%q) says %q, without %q", url, in.Msg, w)
		}
	}
	if strings.Contains(in.Msg, "secret") || strings.Contains(in.Msg, "\n") {
		t.Errorf("Open(%q) says %q", url, in.Msg)
	}
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	for url, words := range map[string]string{
		"":                                   "redis://",
		"localhost:6379":                     "redis://",
		"http://localhost":                   "http://",
		"redis://u:secret@host:port":         "percent-encoded",
		"redis://u:sec/ret@host":             "index URL",
		"redis://host/nine":                  "number",
		"redis://host/-1":                    "number",
		"redis://a,b":                        "several hosts",
		"redis://host?nonsense=1":            "nonsense",
		"redis://host?skip_verify=true":      "rediss://",
		"redis://host?ca=/x":                 "rediss://",
		"rediss://host?ca=/nowhere":          "/nowhere",
		"unix://":                            "socket",
		"unix://relative/path":               "socket",
		"redis+sentinel://host:26379":        "master",
		"redis+sentinel://a,b/?db=1":         "master",
		"redis://:secret@127.0.0.1:1":        "127.0.0.1:1",
		"unix:///nowhere/at-all":             "/nowhere/at-all",
		"redis+sentinel://127.0.0.1:1/m?a=1": "unknown option",
	} {
		wantInput(t, url, "v", redis.Config{}, words)
	}
	for _, name := range []string{"", "a b", "a{b}", "a*", strings.Repeat("x", 33)} {
		wantInput(t, "redis://127.0.0.1:1", name, redis.Config{}, "name")
	}
}

func TestRefusals(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	wantInput(t, srv.URL(), n, redis.Config{}, n, "tgfs init")
	s := open(t, srv.URL(), n, redis.Config{Create: true})
	// One that was made and never used may be made again.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, srv.URL(), n, redis.Config{Create: true})
	if err := set(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantInput(t, srv.URL(), n, redis.Config{Create: true}, n, "already")
	if v, err := get(open(t, srv.URL(), n, redis.Config{}), "k"); err != nil || v != "v" {
		t.Errorf("after a refused Create: %q, %v", v, err)
	}

	do(t, srv, "HSET", "{"+n+"}!meta", "format", "2")
	wantInput(t, srv.URL(), n, redis.Config{}, "newer version", "format 2")
	do(t, srv, "HSET", "{"+n+"}!meta", "format", "1")

	do(t, srv, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	wantInput(t, srv.URL(), n, redis.Config{}, "allkeys-lru", "noeviction", "--allow-volatile")
	_ = open(t, srv.URL(), n, redis.Config{AllowVolatile: true}).Close()
	do(t, srv, "CONFIG", "SET", "maxmemory-policy", "noeviction")

	do(t, srv, "CONFIG", "SET", "appendonly", "no")
	wantInput(t, srv.URL(), n, redis.Config{}, "appendonly", "--allow-volatile")
	_ = open(t, srv.URL(), n, redis.Config{AllowVolatile: true}).Close()
	do(t, srv, "CONFIG", "SET", "save", "3600 1")
	_ = open(t, srv.URL(), n, redis.Config{}).Close()
	do(t, srv, "CONFIG", "SET", "appendonly", "yes")

	do(t, srv, "CONFIG", "SET", "requirepass", "correct")
	wantInput(t, srv.URL(), n, redis.Config{}, "password")
	wantInput(t, strings.Replace(srv.URL(), "://", "://:secret@", 1), n, redis.Config{}, "password")
	_ = open(t, strings.Replace(srv.URL(), "://", "://:correct@", 1), n, redis.Config{}).Close()
}

func TestReplicaRefused(t *testing.T) {
	srv, replica := redistest.Start(t), redistest.Start(t)
	do(t, replica, "REPLICAOF", "127.0.0.1", fmt.Sprint(srv.Port()))
	wantInput(t, replica.URL(), "v", redis.Config{Create: true}, "replica of 127.0.0.1")
}

func TestTuned(t *testing.T) {
	srv := redistest.Start(t)
	_ = open(t, srv.URL(), name(), redis.Config{Create: true}).Close()
	s := redistest.Start(t, "--rename-command", "CONFIG", "") // one that lets nobody
	_ = open(t, s.URL(), name(), redis.Config{Create: true}).Close()
	got, err := srv.Config("zset-max-listpack-entries")
	if err != nil || got != "512" {
		t.Errorf("zset-max-listpack-entries is %q, %v, want 512", got, err)
	}
}

// exercise makes use of all calls once.
func exercise(t *testing.T, url string) {
	t.Helper()
	n := name()
	s := open(t, url, n, redis.Config{Create: true})
	b := burst{s: s}
	b.start(t, bg, 4, 20)
	b.wg.Wait()
	b.check(t, s, 0)
	if err := s.Sync(bg); err != nil {
		t.Error(err)
	}
	ops := 0
	head, err := s.Dump(bg, nil, func(o []kv.Op) error { ops += len(o); return nil })
	if err != nil || ops != 4*20+2 || head.Seq != 80 {
		t.Errorf("a dump of %d records at %v, %v, want 82 at 80", ops, head, err)
	}
	if err := s.Trim(bg, head); err != nil {
		t.Error(err)
	}
	other := open(t, url, n, redis.Config{})
	if ok, err := other.Evict(bg, s.Session(), 0); !ok || err != nil {
		t.Errorf("Evict = %v, %v", ok, err)
	}
	if err := set(s, "k", "v"); !errors.Is(err, kv.ErrFenced) {
		t.Errorf("Update after Evict: %v", err)
	}
}

func TestUnixSocket(t *testing.T) { exercise(t, "unix://"+redistest.Start(t).Socket()) }

func TestDatabase(t *testing.T) { exercise(t, redistest.Start(t).URL()+"/3") }

func TestCluster(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--cluster-enabled", "yes")
	do(t, srv, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if out, _ := srv.Do("SET", "x", "1"); out == "+OK" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the cluster does not come up: %s", out)
		}
	}
	exercise(t, srv.URL())
	wantInput(t, srv.URL()+"/1", name(), redis.Config{Create: true}, "cluster")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, typ string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	certFile, keyFile := file("cert.pem", "CERTIFICATE", cert), file("key.pem", "EC PRIVATE KEY", der)
	port := fmt.Sprint(redistest.FreePort(t))
	redistest.Start(t, "--tls-port", port, "--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-auth-clients", "no")
	url := "rediss://127.0.0.1:" + port
	exercise(t, url+"?ca="+certFile)
	exercise(t, url+"?skip_verify=true")
	wantInput(t, url, name(), redis.Config{Create: true}, "certificate")
}

// A failover by sentinels under running commits: the client goes over to the
// new master. Either the replica had all that was acknowledged, and everything
// completes, or the loss is found out.
func TestSentinel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	master, replica := redistest.Start(t), redistest.Start(t)
	do(t, replica, "REPLICAOF", "127.0.0.1", fmt.Sprint(master.Port()))
	sentinel := redistest.Sentinel(t, master)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if sentinel.Replicas() == 1 {
			break
		} else if time.Now().After(end) {
			t.Fatal("the sentinel does not find the replica")
		}
	}
	s := open(t, "redis+sentinel://"+sentinel.Addr()+"/main", name(), redis.Config{Create: true, Timeout: time.Second, Replicas: 1, LogBytes: -1})
	first := burst{s: s}
	first.start(t, bg, 4, 25)
	first.wg.Wait()
	if err := s.Sync(bg); err != nil { // the replica has these
		t.Fatal(err)
	}
	master.Kill()
	start := time.Now()
	err := set(s, "after", "failover")
	t.Logf("the commit after the failover: %v, %v", time.Since(start).Round(time.Millisecond), err)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := get(s, "after"); err != nil || v != "failover" {
		t.Errorf("Get = %q, %v", v, err)
	}
	if h, err := s.Head(bg); err != nil || h.Seq != 101 {
		t.Errorf("head is %v, %v, want 101", h, err)
	}
}
