package redis

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tgfs"
)

// target is where a server is, as a URL says it:
//
//	redis://[user:password@]host[:port][/db]
//	rediss://…                                   with TLS
//	unix://[user:password@]/path/to/socket[?db=n]
//	redis+sentinel://[user:password@]host[:port][,host:port…]/master[/db]
//	rediss+sentinel://…
//
// Options after "?": db, ca=FILE (TLS: who signs the server's certificate, instead
// of the system's list), skip_verify=true (TLS without a check of who the server
// is), sentinel_user and sentinel_password. A node of a cluster is enough:
// the rest of it is found.
type target struct {
	network    string
	addrs      []string
	master     string // asked of sentinels
	user, pass string
	suser      string
	spass      string
	db         int
	tls        *tls.Config
}

// String names the target without its secrets.
func (t target) String() string {
	s := strings.Join(t.addrs, ",")
	if t.master != "" {
		s = "master " + t.master + " of sentinels " + s
	}
	return s
}

const urlForms = "redis://host:port/db, rediss://…, unix:///socket or redis+sentinel://host:port,…/master"

// parseURL reads a URL. Its errors are *tgfs.InputError and do not repeat the
// URL, which may hold a password.
func parseURL(s string) (target, error) {
	// url.Parse takes no list of hosts: the others are put aside.
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return target{}, tgfs.Inputf("the index URL is none: it must be %s", urlForms)
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	userinfo, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		userinfo, hosts = authority[:i+1], authority[i+1:]
	}
	list := strings.Split(hosts, ",")
	u, err := url.Parse(scheme + "://" + userinfo + list[0] + tail)
	if err != nil {
		why := err
		if uerr := (*url.Error)(nil); errors.As(err, &uerr) {
			why = uerr.Err
		}
		if userinfo != "" {
			return target{}, tgfs.Inputf("the index URL cannot be read; a password with special characters must be percent-encoded (@ is %%40)")
		}
		return target{}, tgfs.Inputf("the index URL cannot be read: %v", why)
	}
	t := target{network: "tcp", user: u.User.Username()}
	t.pass, _ = u.User.Password()
	path := strings.Trim(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		t.addrs = []string{hostPort(list[0], "6379")}
	case "redis+sentinel", "rediss+sentinel":
		t.master, path, _ = strings.Cut(path, "/")
		if t.master == "" {
			return target{}, tgfs.Inputf("the index URL names no master: it must be redis+sentinel://host:port,…/master")
		}
		for _, h := range list {
			t.addrs = append(t.addrs, hostPort(h, "26379"))
		}
	case "unix":
		if u.Path == "" || u.Host != "" {
			return target{}, tgfs.Inputf("the index URL names no socket: it must be unix:///path/to/socket")
		}
		t.network, t.addrs, path = "unix", []string{u.Path}, ""
	default:
		return target{}, tgfs.Inputf("the index URL begins with %q: it must be %s", u.Scheme+"://", urlForms)
	}
	if len(list) > 1 && t.master == "" {
		return target{}, tgfs.Inputf("the index URL has several hosts: only redis+sentinel:// takes a list (of a cluster, one node is enough)")
	}
	if strings.HasPrefix(u.Scheme, "rediss") {
		host, _, _ := net.SplitHostPort(t.addrs[0])
		t.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
		if t.master != "" {
			t.tls.ServerName = "" // each node has its own
		}
	}
	return t, t.options(u.Query(), path)
}

// options reads what follows the address.
func (t *target) options(q url.Values, path string) error {
	for k, vs := range q {
		v := vs[len(vs)-1]
		switch k {
		case "db":
			path = v
		case "skip_verify":
			if t.tls == nil {
				return tgfs.Inputf("the index URL has skip_verify, which only rediss:// takes")
			}
			t.tls.InsecureSkipVerify = v == "true" || v == "1"
		case "ca":
			if t.tls == nil {
				return tgfs.Inputf("the index URL has ca, which only rediss:// takes")
			}
			pem, err := os.ReadFile(v)
			if err != nil {
				return tgfs.Inputf("the index URL's ca: %v", err)
			}
			t.tls.RootCAs = x509.NewCertPool()
			if !t.tls.RootCAs.AppendCertsFromPEM(pem) {
				return tgfs.Inputf("the index URL's ca: %s holds no certificate in PEM form", v)
			}
		case "sentinel_user":
			t.suser = v
		case "sentinel_password":
			t.spass = v
		default:
			return tgfs.Inputf("the index URL has an unknown option %q: db, ca, skip_verify, sentinel_user and sentinel_password are known", k)
		}
	}
	if path != "" {
		n, err := strconv.Atoi(path)
		if err != nil || n < 0 {
			return tgfs.Inputf("the index URL names the database %q: it must be a number", path)
		}
		t.db = n
	}
	return nil
}

func hostPort(h, port string) string {
	if h == "" {
		h = "localhost"
	}
	if _, _, err := net.SplitHostPort(h); err == nil {
		return h
	}
	return net.JoinHostPort(strings.Trim(h, "[]"), port)
}

// conns is how many connections a store opens at most: one for each commit
// that may be under way, and as many for reads.
const conns = 2 * slotCount

// client makes a client of the target. It retries nothing: whoever calls knows
// whether a command may be sent again.
func (t target) client(timeout time.Duration) goredis.UniversalClient {
	if t.master != "" {
		return goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: t.master, SentinelAddrs: t.addrs, SentinelUsername: t.suser, SentinelPassword: t.spass,
			Username: t.user, Password: t.pass, DB: t.db, TLSConfig: t.tls,
			MaxRetries: -1, DialerRetries: 1, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
			PoolSize: conns, PoolTimeout: timeout, DisableIdentity: true, PipelinePoolSize: -1,
		})
	}
	return goredis.NewClient(&goredis.Options{
		Network: t.network, Addr: t.addrs[0], Username: t.user, Password: t.pass, DB: t.db, TLSConfig: t.tls,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
		PoolSize: conns, PoolTimeout: timeout, DisableIdentity: true, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// cluster makes a client of the cluster that the target is a node of.
func (t target) cluster(timeout time.Duration) goredis.UniversalClient {
	return goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: t.addrs, Username: t.user, Password: t.pass, TLSConfig: t.tls,
		MaxRetries: -1, DialerRetries: 1, DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
		PoolSize: conns, PoolTimeout: timeout, DisableIdentity: true, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}
