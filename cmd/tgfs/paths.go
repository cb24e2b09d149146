package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tgfs"
)

// paths is where a volume's things lie on this host. All are absolute.
type paths struct {
	State   string // holds all that must not be lost: stage, index, sessions
	Stage   string
	Index   string // the file of the embedded index
	Bots    string // sessions and waits of the bots, of this host only
	Lock    string // held by the command that uses the volume
	Log     string // of a mount in the background
	Control string // the socket of the running mount
	Cache   string // may be deleted at any time; "" when the disk level is off
}

// places says where things lie. The flags win over the config, the config over
// the XDG directories. It makes nothing.
func (c *config) places(stateDir, cacheDir string) (paths, error) {
	var p paths
	var err error
	if p.State, err = place(stateDir, os.Getenv("TGFS_STATE_DIR"), "XDG_STATE_HOME", ".local/state", c.name()); err != nil {
		return p, err
	}
	if *c.Cache.Disk > 0 {
		dir := cacheDir
		if dir == "" {
			dir = c.besideConfig(c.Cache.Dir)
		}
		if p.Cache, err = place(dir, "", "XDG_CACHE_HOME", ".cache", c.name()); err != nil {
			return p, err
		}
	}
	p.Stage = filepath.Join(p.State, "stage")
	if c.Stage.Dir != "" {
		p.Stage = c.besideConfig(c.Stage.Dir)
	}
	if p.Index, err = c.indexPath(p.State); err != nil {
		return p, err
	}
	p.Bots = filepath.Join(p.State, "bots")
	p.Lock = filepath.Join(p.State, "lock")
	p.Log = filepath.Join(p.State, "tgfs.log")
	p.Control = filepath.Join(p.State, "control")
	return p, nil
}

// indexPath is the file that index.url names.
func (c *config) indexPath(state string) (string, error) {
	url := c.Index.URL
	scheme, rest, ok := strings.Cut(url, ":")
	switch {
	case url == "":
		return filepath.Join(state, "index.db"), nil
	case scheme == "redis" || scheme == "rediss" || scheme == "unix":
		return "", tgfs.Inputf("config %s: index.url: Redis is not in this version: use \"bolt:PATH\"", c.path)
	case ok && scheme == "bolt" && rest != "":
		return c.besideConfig(strings.TrimPrefix(rest, "//")), nil
	}
	return "", tgfs.Inputf("config %s: index.url is %q: write \"bolt:PATH\"", c.path, url)
}

// besideConfig resolves a path of the config file against the file's folder,
// so that it means the same wherever tgfs is started.
func (c *config) besideConfig(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(c.path), path)
}

// keyFile is the file that holds the volume's key when the config does not.
func (c *config) keyFile() string {
	if c.Volume.KeyFile != "" {
		return c.besideConfig(c.Volume.KeyFile)
	}
	return c.path + ".key"
}

// place is the flag's directory as it is, else the environment's, else NAME
// in the XDG home.
func place(flag, env, xdgVar, fallback, name string) (string, error) {
	if flag == "" {
		flag = env
	}
	if flag != "" {
		dir, err := filepath.Abs(flag)
		if err != nil {
			return "", fmt.Errorf("path %q: %w", flag, err)
		}
		return dir, nil
	}
	home, err := xdg(xdgVar, fallback)
	if err != nil {
		return "", err
	}
	return filepath.Join(home, "tgfs", name), nil
}

// xdg is a base directory of the XDG specification, which says to ignore a
// variable that is not absolute.
func xdg(variable, fallback string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", tgfs.Inputf("no home directory: set HOME or %s", variable)
	}
	return filepath.Join(home, fallback), nil
}

// exists tells whether there is something at path; doubt is an error.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return true, nil
}

// inside tells whether path is dir or below it.
func inside(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}
