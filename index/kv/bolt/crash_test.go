package bolt_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
)

const (
	crashEnv     = "TGFS_BOLT_CRASH_CHILD"
	crashWorkers = 3
)

// crashChild commits until it is killed, and says on stdout which of its
// commits were answered: worker and number, one line each.
func crashChild(path string) {
	cfg := tiny
	cfg.Create = true
	cfg.Log = quiet
	cfg.FlushOps = 50
	s, err := bolt.Open(path, cfg)
	if err != nil {
		fmt.Println("error", err)
		return
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range crashWorkers {
		wg.Go(func() {
			for {
				var n int64
				_, err := s.Update(bg, func(tx kv.Tx) error {
					have, err := tx.Counter(kv.Key{T: 'c', P: uint64(w)})
					n = have + 1
					tx.Add(kv.Key{T: 'c', P: uint64(w)}, 1)
					tx.Set(kv.Key{T: 'r', P: uint64(w), S: fmt.Sprintf("%09d", n)}, fmt.Appendf(nil, "%d", n))
					tx.Set(kv.Key{T: 'q', P: uint64(w), S: fmt.Sprintf("%09d", n)}, fmt.Appendf(nil, "%d", n))
					return err
				})
				mu.Lock()
				if err != nil {
					fmt.Println("error", err)
				} else {
					fmt.Println(w, n)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// A child process is killed with -9 at random; every commit that it saw
// answered is there, and each commit is there whole.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	acked := make([]int64, crashWorkers)
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(20+rand.IntN(150))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			w, n, ok := strings.Cut(lines.Text(), " ")
			i, err1 := strconv.Atoi(w)
			num, err2 := strconv.ParseInt(n, 10, 64)
			if !ok || err1 != nil || err2 != nil {
				if w == "error" {
					t.Error(lines.Text())
				}
				continue // the line that was being written
			}
			acked[i] = max(acked[i], num)
		}
		timer.Stop()
		_ = cmd.Wait() // it was killed
		s := open(t, path, bolt.Config{Create: true})
		for w, n := range acked {
			err := s.View(bg, kv.Pos{}, func(r kv.Reader) error {
				have, err := r.Counter(kv.Key{T: 'c', P: uint64(w)})
				if err != nil {
					return err
				}
				// At most one commit of a worker may be there unanswered.
				if have < n || have > n+1 {
					t.Errorf("round %d, worker %d: %d commits answered, %d there", round, w, n, have)
				}
				for _, table := range []byte{'r', 'q'} {
					count, after := int64(0), ""
					for {
						rows, err := r.Scan(table, uint64(w), after, 500)
						if err != nil {
							return err
						}
						if len(rows) == 0 {
							break
						}
						count += int64(len(rows))
						after = rows[len(rows)-1].S
					}
					if count != have {
						t.Errorf("round %d, worker %d: %d records in %c for %d commits", round, w, count, table, have)
					}
				}
				acked[w] = have
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rounds, answered commits by worker: %v", rounds, acked)
}
