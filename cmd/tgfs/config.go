package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"tgfs"
)

// config is all that a user may set. The zero value of a field means that
// nobody set it; setDefaults then fills it. A field's path in the file is its
// name in the environment too: telegram.api_hash is TGFS_TELEGRAM_API_HASH.
type config struct {
	Telegram telegramConfig `toml:"telegram"`
	Volume   volumeConfig   `toml:"volume"`
	Index    indexConfig    `toml:"index"`
	Cache    cacheConfig    `toml:"cache"`
	Stage    stageConfig    `toml:"stage"`
	Mount    mountConfig    `toml:"mount"`

	path string // the file it came from; absolute
}

type telegramConfig struct {
	APIID          int      `toml:"api_id"`
	APIHash        string   `toml:"api_hash" secret:"yes"`
	Bots           []string `toml:"bots" secret:"yes"`
	Channel        int64    `toml:"channel"`
	DC             int      `toml:"dc"`
	Address        string   `toml:"address"`
	PublicKey      string   `toml:"public_key"`
	PostsPerMinute int      `toml:"posts_per_minute"`
}

type volumeConfig struct {
	Name       string `toml:"name"`
	Key        string `toml:"key" secret:"yes"`
	KeyFile    string `toml:"key_file"`
	Passphrase string `toml:"passphrase" secret:"yes"`
}

type indexConfig struct {
	URL string `toml:"url"`
}

type cacheConfig struct {
	Memory size   `toml:"memory"`
	Disk   *size  `toml:"disk"` // 0 means no disk level, so unset must differ
	Dir    string `toml:"dir"`
	Slots  int    `toml:"slots"`
	Queue  int    `toml:"queue"`

	// The level that hosts share; its defaults are those of cache.Shared.
	URL         string   `toml:"url" secret:"yes"`
	Timeout     duration `toml:"timeout"`
	Failures    int      `toml:"failures"`
	Within      duration `toml:"failures_within"`
	Rest        duration `toml:"rest"`
	Connections int      `toml:"connections"`
	LineLife    duration `toml:"line_life"`
	NoLease     bool     `toml:"no_lease"`
	Lease       duration `toml:"lease"`
	Renew       duration `toml:"lease_renew"`
	PollMin     duration `toml:"poll_min"`
	PollMax     duration `toml:"poll_max"`
	ErrorLife   duration `toml:"error_life"`
	Absent      duration `toml:"absent"`
}

type stageConfig struct {
	Dir    string   `toml:"dir"`
	Size   size     `toml:"size"`
	Quiet  duration `toml:"quiet"`
	MaxAge duration `toml:"max_age"`
}

type mountConfig struct {
	Durability string `toml:"durability"`
	Fsync      string `toml:"fsync"`
	AllowOther bool   `toml:"allow_other"`
}

// loadConfig reads the config file, then the environment on top of it. It
// checks each value by itself; what is required is checked by validate, after
// the flags had their say. path "" means the default place.
func loadConfig(path string, environ []string) (*config, error) {
	path, err := configPath(path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, tgfs.Inputf("no config at %s: write one (README.md shows it), or name it with --config", path)
	}
	if err != nil {
		return nil, tgfs.Inputf("config cannot be read: %v", err)
	}
	defer f.Close()
	c := &config{path: path}
	if err := c.decodeFile(f); err != nil {
		return nil, err
	}
	if err := c.checkMode(f); err != nil {
		return nil, err
	}
	if err := c.applyEnv(environ); err != nil {
		return nil, err
	}
	if err := c.readPublicKey(); err != nil {
		return nil, err
	}
	c.setDefaults()
	return c, nil
}

// readPublicKey replaces the name of a file by the PEM text in it.
func (c *config) readPublicKey() error {
	key := &c.Telegram.PublicKey
	if *key == "" || strings.Contains(*key, "-----BEGIN") {
		return nil
	}
	text, err := os.ReadFile(c.besideConfig(*key))
	if err != nil {
		return tgfs.Inputf("config %s: telegram.public_key: %v", c.path, err)
	}
	*key = string(text)
	return nil
}

// configPath makes the path absolute: a mount in the background leaves the
// directory it was started in.
func configPath(path string) (string, error) {
	if path == "" {
		path = os.Getenv("TGFS_CONFIG")
	}
	if path == "" {
		dir, err := xdg("XDG_CONFIG_HOME", ".config")
		if err != nil {
			return "", err
		}
		path = filepath.Join(dir, "tgfs", "config.toml")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("config path: %w", err)
	}
	return abs, nil
}

// checkMode refuses a file that holds secrets and that others may read.
func (c *config) checkMode(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 && c.hasSecrets() {
		return tgfs.Inputf("config %s holds secrets and others may read it: run chmod 600 %s", c.path, shellQuote(c.path))
	}
	return nil
}

func (c *config) setDefaults() {
	orSize := func(p *size, v size) {
		if *p == 0 {
			*p = v
		}
	}
	orString := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	orDuration := func(p *duration, v time.Duration) {
		if p.Duration == 0 {
			p.Duration = v
		}
	}
	orSize(&c.Cache.Memory, 128<<20)
	if c.Cache.Disk == nil {
		disk := size(10 << 30)
		c.Cache.Disk = &disk
	}
	orSize(&c.Stage.Size, 10<<30)
	orDuration(&c.Stage.Quiet, 2*time.Second)
	orDuration(&c.Stage.MaxAge, 30*time.Second)
	orString(&c.Mount.Durability, "local")
	orString(&c.Mount.Fsync, "remote")
}

// validate checks what the commands that open a volume need. Tokens, address and
// public key are checked by botpool, which knows their form.
func (c *config) validate() error {
	bad := func(format string, args ...any) error {
		return tgfs.Inputf("config %s: %s", c.path, fmt.Sprintf(format, args...))
	}
	t := &c.Telegram
	switch {
	case t.APIID <= 0:
		return bad("telegram.api_id is missing: https://my.telegram.org gives it")
	case t.APIHash == "":
		return bad("telegram.api_hash is missing: https://my.telegram.org gives it")
	case len(t.Bots) == 0:
		return bad("telegram.bots is empty: list the bot tokens that @BotFather gave")
	case t.Channel == 0:
		return bad("telegram.channel is missing: the number of the channel that holds the volume")
	}
	for _, s := range c.settings() {
		if n, ok := s.value.Interface().(size); ok && n < 0 {
			return bad("%s is less than nothing", s.key)
		}
	}
	if c.Mount.Durability != "local" && c.Mount.Durability != "remote" {
		return bad("mount.durability is %q: it must be \"local\" or \"remote\"", c.Mount.Durability)
	}
	if c.Mount.Fsync != "remote" && c.Mount.Fsync != "local" {
		return bad("mount.fsync is %q: it must be \"remote\" or \"local\"", c.Mount.Fsync)
	}
	if strings.ContainsAny(c.Volume.Name, "/\x00") || c.Volume.Name == "." || c.Volume.Name == ".." {
		return bad("volume.name %q must be usable as the name of a directory", c.Volume.Name)
	}
	return nil
}

// name is the volume's directory below the state and cache homes. A channel
// holds one volume, and its number is known before the volume exists.
func (c *config) name() string {
	if c.Volume.Name != "" {
		return c.Volume.Name
	}
	return strconv.FormatInt(bareChannel(c.Telegram.Channel), 10)
}

// bareChannel turns the -100… form of a channel's number, which bots and some
// clients show, into the number itself.
func bareChannel(n int64) int64 {
	const shift = 1_000_000_000_000
	if n < -shift {
		return -n - shift
	}
	return n
}

// shellQuote quotes s for a line that the user may paste into a shell.
func shellQuote(s string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`).MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
