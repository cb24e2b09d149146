package tgemu

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/gotd/td/exchange"
)

// PublicKeyPEM is the server's RSA key in PKCS #1 PEM, as a tgfs config takes it.
func (s *Server) PublicKeyPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{
		Type:  "RSA PUBLIC KEY",
		Bytes: x509.MarshalPKCS1PublicKey(&s.key.RSA.PublicKey),
	}))
}

// ParsePublicKey reads what PublicKeyPEM returned, for a gotd client.
func ParsePublicKey(s string) (exchange.PublicKey, error) {
	p, _ := pem.Decode([]byte(s))
	if p == nil {
		return exchange.PublicKey{}, errors.New("tgemu: no PEM block")
	}
	k, err := x509.ParsePKCS1PublicKey(p.Bytes)
	return exchange.PublicKey{RSA: k}, err
}

// newKey makes one key per process, for all new worlds in it: making a key takes
// longer than most tests, and on loopback nobody is kept out by it.
var newKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// loadKey reads the world's RSA key, or makes it. Clients pin it, so it lasts as
// long as the directory.
func loadKey(path string) (exchange.PrivateKey, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		k, err := newKey()
		if err != nil {
			return exchange.PrivateKey{}, err
		}
		raw = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
		if err := writeFile(path, raw); err != nil {
			return exchange.PrivateKey{}, err
		}
		return exchange.PrivateKey{RSA: k}, nil
	}
	if err != nil {
		return exchange.PrivateKey{}, err
	}
	p, _ := pem.Decode(raw)
	if p == nil {
		return exchange.PrivateKey{}, fmt.Errorf("%s holds no PEM block", path)
	}
	k, err := x509.ParsePKCS1PrivateKey(p.Bytes)
	if err != nil {
		return exchange.PrivateKey{}, fmt.Errorf("read %s: %w", path, err)
	}
	return exchange.PrivateKey{RSA: k}, nil
}

// writeFile replaces path as a whole, so that a reader or a crash never meets half
// a file.
func writeFile(path string, b []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return nil
}
