package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tgfs"
)

const goodConfig = `
[telegram]
api_id = 17349
api_hash = "0123456789abcdef0123456789abcdef"
bots = ["111:AAA", "222:BBB"]
channel = -1001234567890
`

// writeConfig puts a config into a fresh directory and returns its path.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigDefaults(t *testing.T) {
	c, err := loadConfig(writeConfig(t, goodConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if c.Cache.Memory != 128<<20 || *c.Cache.Disk != 10<<30 || c.Stage.Size != 10<<30 {
		t.Errorf("sizes = %d, %d, %d", c.Cache.Memory, *c.Cache.Disk, c.Stage.Size)
	}
	if c.Stage.Quiet.Duration != 2*time.Second || c.Stage.MaxAge.Duration != 30*time.Second {
		t.Errorf("times = %v, %v", c.Stage.Quiet, c.Stage.MaxAge)
	}
	if got := c.name(); got != "1234567890" {
		t.Errorf("name() = %q, want the bare channel number", got)
	}
}

// Each mistake is an InputError of one line with these words in it.
func TestConfigMistakes(t *testing.T) {
	for _, tt := range []struct {
		name string
		text string
		env  []string
		want []string
	}{
		{name: "misspelt key", text: goodConfig + "post_per_minute = 3\n", want: []string{"line 7", "telegram.post_per_minute", "telegram.posts_per_minute"}},
		{name: "wrong section", text: goodConfig + "[mount]\nquiet = \"2s\"\n", want: []string{"line 8", "mount.quiet", "stage.quiet"}},
		{name: "unknown section", text: goodConfig + "[caches]\nmemory = \"1GiB\"\n", want: []string{"caches", "cache"}},
		{name: "nothing near", text: goodConfig + "[mount]\nzzzzzz = 1\n", want: []string{"mount.zzzzzz"}},
		{name: "bad TOML", text: "[telegram\n", want: []string{"line 1"}},
		{name: "size", text: goodConfig + "[cache]\nmemory = \"much\"\n", want: []string{"line 8", "cache.memory", "much", "GiB"}},
		{name: "size below nothing", text: goodConfig + "[cache]\nmemory = -5\n", want: []string{"cache.memory"}},
		{name: "duration", text: goodConfig + "[stage]\nquiet = \"2\"\n", want: []string{"stage.quiet", "2s"}},
		{name: "duration as number", text: goodConfig + "[stage]\nquiet = 5\n", want: []string{"no time span", "2s"}},
		{name: "no api_id", text: "[telegram]\n", want: []string{"telegram.api_id"}},
		{name: "no bots", text: strings.Replace(goodConfig, `"111:AAA", "222:BBB"`, "", 1), want: []string{"telegram.bots"}},
		{name: "no channel", text: strings.Replace(goodConfig, "channel =", "dc =", 1), want: []string{"telegram.channel"}},
		{name: "durability", text: goodConfig + "[mount]\ndurability = \"yes\"\n", want: []string{"mount.durability", "local"}},
		{name: "fsync", text: goodConfig, env: []string{"TGFS_MOUNT_FSYNC=never"}, want: []string{"mount.fsync", "remote"}},
		{name: "redis", text: goodConfig + "[index]\nurl = \"redis://localhost\"\n", want: []string{"not in this version", "bolt:"}},
		{name: "index url", text: goodConfig + "[index]\nurl = \"index.db\"\n", want: []string{"index.url", "bolt:PATH"}},
		{name: "unknown variable", text: goodConfig, env: []string{"TGFS_TELEGRAM_API_HAS=x"}, want: []string{"TGFS_TELEGRAM_API_HAS"}},
		{name: "variable not a number", text: goodConfig, env: []string{"TGFS_TELEGRAM_API_ID=x"}, want: []string{"TGFS_TELEGRAM_API_ID", "number"}},
		{name: "key and passphrase", text: goodConfig + "[volume]\nkey = \"00\"\npassphrase = \"x\"\n", want: []string{"volume.key", "volume.passphrase"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := loadConfig(writeConfig(t, tt.text), tt.env)
			if err == nil {
				err = c.validate()
			}
			if err == nil {
				_, err = c.places(t.TempDir(), t.TempDir())
			}
			if err == nil {
				_, err = c.secret()
			}
			if _, ok := errors.AsType[*tgfs.InputError](err); !ok {
				t.Fatalf("error = %v, want an InputError", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error %q is more than one line", err)
			}
			for _, secret := range []string{"hunter2", "AAA", "BBB", "0123456789abcdef"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("error %q tells the secret %q", err, secret)
				}
			}
		})
	}
}

func TestConfigOfOthers(t *testing.T) {
	path := writeConfig(t, goodConfig)
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := loadConfig(path, nil)
	if _, ok := errors.AsType[*tgfs.InputError](err); !ok || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Errorf("error = %v, want one with the chmod to run", err)
	}
	// Without secrets in it, anybody may read it.
	open := writeConfig(t, "[telegram]\napi_id = 1\n")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadConfig(open, nil); err != nil {
		t.Errorf("config without secrets: %v", err)
	}
}

func TestEnvironmentWins(t *testing.T) {
	c, err := loadConfig(writeConfig(t, goodConfig), []string{
		"TGFS_TELEGRAM_API_ID=5", "TGFS_TELEGRAM_BOTS=7:x, 8:y", "TGFS_CACHE_DISK=0", "TGFS_MOUNT_ALLOW_OTHER=true",
		"TGFS_STAGE_QUIET=1m", "TGFS_PASSPHRASE=p", "PATH=/bin",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Telegram.APIID != 5 || len(c.Telegram.Bots) != 2 || c.Telegram.Bots[1] != "8:y" {
		t.Errorf("telegram = %d, %d bots", c.Telegram.APIID, len(c.Telegram.Bots))
	}
	if *c.Cache.Disk != 0 || !c.Mount.AllowOther || c.Stage.Quiet.Duration != time.Minute || c.Volume.Passphrase != "p" {
		t.Errorf("cache.disk, mount.allow_other, stage.quiet or volume.passphrase was not taken")
	}
	p, err := c.places(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if p.Cache != "" {
		t.Errorf("cache.disk = 0 left the disk level on, at %s", p.Cache)
	}
}

func TestPlaces(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/s")
	t.Setenv("XDG_CACHE_HOME", "/c")
	t.Setenv("TGFS_STATE_DIR", "")
	path := writeConfig(t, goodConfig+"[index]\nurl = \"bolt:idx/i.db\"\n")
	c, err := loadConfig(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.places("", "")
	if err != nil {
		t.Fatal(err)
	}
	if p.State != "/s/tgfs/1234567890" || p.Cache != "/c/tgfs/1234567890" || p.Stage != "/s/tgfs/1234567890/stage" {
		t.Errorf("places = %+v", p)
	}
	if want := filepath.Join(filepath.Dir(path), "idx/i.db"); p.Index != want {
		t.Errorf("index = %s, want %s: beside the config", p.Index, want)
	}
	if p, err = c.places("/my/state", "/my/cache"); err != nil || p.State != "/my/state" || p.Cache != "/my/cache" {
		t.Errorf("with flags: %+v, %v", p, err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]size{"0": 0, "17": 17, "1KiB": 1024, "1.5 GiB": 3 << 29, "10GB": 10e9, "64MiB": 64 << 20, "3B": 3} {
		var s size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("size %q = %d, %v, want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "-1", "GiB", "1XB", "1e30GiB", "NaN"} {
		var s size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("size %q = %d, want an error", text, s)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"kitten", "sitting", 3}, {"quiet", "quite", 2}, {"same", "same", 0}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
