package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"tgfs"

	"github.com/pelletier/go-toml/v2"
)

// decodeFile fills c from TOML. Every key must be known.
func (c *config) decodeFile(r io.Reader) error {
	dec := toml.NewDecoder(r)
	dec.DisallowUnknownFields()
	err := dec.Decode(c)
	if err == nil {
		return nil
	}
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		e := &strict.Errors[0]
		line, _ := e.Position()
		key := strings.Join(e.Key(), ".")
		hint := ""
		if near := nearestKey(key, knownKeys()); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
		return tgfs.Inputf("config %s line %d: unknown key %s%s", c.path, line, key, hint)
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		what := strings.TrimPrefix(e.Error(), "toml: ")
		if key := strings.Join(e.Key(), "."); key != "" {
			what = key + ": " + what
		}
		return tgfs.Inputf("config %s line %d: %s", c.path, line, what)
	}
	return tgfs.Inputf("config %s: %s", c.path, strings.TrimPrefix(err.Error(), "toml: "))
}

// setting is one field of the config with its path, like "cache.memory".
type setting struct {
	key    string
	secret bool
	value  reflect.Value
}

// settings lists the fields of c in the order in which they are declared.
func (c *config) settings() []setting {
	var all []setting
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		section := v.Type().Field(i).Tag.Get("toml")
		if section == "" {
			continue
		}
		s := v.Field(i)
		for j := range s.NumField() {
			tag := s.Type().Field(j).Tag
			all = append(all, setting{section + "." + tag.Get("toml"), tag.Get("secret") != "", s.Field(j)})
		}
	}
	return all
}

func (c *config) hasSecrets() bool {
	return slices.ContainsFunc(c.settings(), func(s setting) bool { return s.secret && !s.value.IsZero() })
}

func knownKeys() []string {
	var keys []string
	for _, s := range (&config{}).settings() {
		keys = append(keys, s.key)
	}
	return keys
}

// applyEnv sets what the environment names: TGFS_SECTION_KEY, and the two
// short names for the volume's secret. Lists are separated by commas.
func (c *config) applyEnv(environ []string) error {
	byName := make(map[string]setting)
	for _, s := range c.settings() {
		byName[envName(s.key)] = s
	}
	byName["TGFS_KEY"] = byName["TGFS_VOLUME_KEY"]
	byName["TGFS_PASSPHRASE"] = byName["TGFS_VOLUME_PASSPHRASE"]
	for _, kv := range environ {
		name, text, _ := strings.Cut(kv, "=")
		s, known := byName[name]
		if !known || text == "" {
			if !known && isSectionEnv(name) {
				return tgfs.Inputf("environment variable %s is no setting of tgfs: see the config reference in README.md", name)
			}
			continue
		}
		if err := setText(s.value, text); err != nil {
			return tgfs.Inputf("environment variable %s: %v", name, err)
		}
	}
	return nil
}

func envName(key string) string {
	return "TGFS_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// isSectionEnv tells whether a variable looks like a setting, so that a slip
// in its name is told and not passed over.
func isSectionEnv(name string) bool {
	for _, key := range knownKeys() {
		section, _, _ := strings.Cut(key, ".")
		if strings.HasPrefix(name, envName(section)+"_") {
			return true
		}
	}
	return false
}

func setText(v reflect.Value, text string) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if u, ok := v.Addr().Interface().(interface{ UnmarshalText([]byte) error }); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("it must be true or false")
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return errors.New("it must be a whole number")
		}
		v.SetInt(n)
	case reflect.Slice:
		v.Set(reflect.ValueOf(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })))
	default:
		return fmt.Errorf("cannot set a %s from text", v.Kind())
	}
	return nil
}

// nearestKey is the known key that an unknown one was most likely meant to be;
// "" when none is near. The right key in the wrong section counts as near.
func nearestKey(key string, known []string) string {
	section, name, _ := strings.Cut(key, ".")
	rank := func(k string) int {
		s, n, _ := strings.Cut(k, ".")
		if n == name {
			return 1
		}
		return distance(section, s) + distance(name, n)
	}
	best := slices.MinFunc(known, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	if name == "" {
		// A whole section, or a key above the first one.
		for _, k := range known {
			s, n, _ := strings.Cut(k, ".")
			if n == section {
				return fmt.Sprintf("%s (in section [%s])", n, s)
			}
			if distance(s, section) <= 2 {
				return "section [" + s + "]"
			}
		}
		return ""
	}
	if rank(best) > max(2, len(name)/3) {
		return ""
	}
	return best
}

// distance is the edit distance (Levenshtein) of two short ASCII words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
