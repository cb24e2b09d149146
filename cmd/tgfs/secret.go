package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"tgfs"
	"tgfs/store/pack"
)

// secret is what opens the volume: the config's key or passphrase, else the
// key file's key.
func (c *config) secret() (pack.Secret, error) {
	s, ok, err := c.givenSecret()
	if ok || err != nil {
		return s, err
	}
	path := c.keyFile()
	if err := checkPrivate(path); err != nil {
		return pack.Secret{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return pack.Secret{}, tgfs.Inputf("key file cannot be read: %v", err)
	}
	if s, err = pack.ParseKeySecret(string(text)); err != nil {
		return pack.Secret{}, tgfs.Inputf("key file %s: %v", path, err)
	}
	return s, nil
}

// givenSecret is the secret that stands in the config or the environment.
func (c *config) givenSecret() (s pack.Secret, ok bool, err error) {
	v := &c.Volume
	switch {
	case v.Key != "" && v.Passphrase != "":
		return s, false, tgfs.Inputf("config %s: both volume.key and volume.passphrase are set: keep the one the volume was made with", c.path)
	case v.Key != "":
		s, err = pack.ParseKeySecret(v.Key)
		return s, true, err
	case v.Passphrase != "":
		s, err = pack.PassphraseSecret(v.Passphrase)
		return s, true, err
	}
	return s, false, nil
}

// newSecret is the secret of a volume that is about to be made. When neither
// key nor passphrase is configured and there is no key file yet, it makes a
// key; the caller then writes it to the file that made names.
func (c *config) newSecret() (s pack.Secret, made string, err error) {
	s, ok, err := c.givenSecret()
	if ok || err != nil {
		return s, "", err
	}
	path := c.keyFile()
	there, err := exists(path)
	if err != nil {
		return s, "", err
	}
	if there {
		s, err = c.secret()
		return s, "", err
	}
	return pack.NewKeySecret(), path, nil
}

// writeKey writes a key to a fresh 0600 file, durably.
func writeKey(path string, s pack.Secret) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrExist) {
		return tgfs.Inputf("key file cannot be made: %v", err)
	}
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	_, err = fmt.Fprintln(f, s.Reveal())
	err = errors.Join(err, f.Sync(), f.Close(), syncDir(path))
	if err != nil {
		return fmt.Errorf("key file: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}
