package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"
)

// Progress shows only when the work takes longer than progressAfter; where
// there is no terminal, as a line each progressEvery.
const (
	progressAfter = 500 * time.Millisecond
	progressEvery = 5 * time.Second
)

// progress tells how many bytes are still to go up. It belongs to one goroutine.
type progress struct {
	w       io.Writer
	label   string
	start   time.Time
	told    time.Time // of the last plain line
	total   int64     // the most that was ever left
	bars    *mpb.Progress
	bar     *mpb.Bar
	barDone int64
}

func newProgress(w io.Writer, label string) *progress {
	return &progress{w: w, label: label, start: time.Now()}
}

// left says how many bytes are left now. The number may grow.
func (p *progress) left(n int64) {
	p.total = max(p.total, n)
	done := p.total - n
	age := time.Since(p.start)
	switch {
	case age < progressAfter || p.total == 0:
	case p.bars == nil && isTerminal(p.w):
		p.bars = mpb.New(mpb.WithOutput(p.w), mpb.WithWidth(50))
		p.bar = p.bars.AddBar(p.total,
			mpb.PrependDecorators(decor.Name(p.label+" "), decor.CountersKibiByte("% .1f of % .1f")),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name("  "), decor.AverageETA(decor.ET_STYLE_GO)),
		)
		p.advance(done)
	case p.bars != nil:
		p.advance(done)
	case time.Since(p.told) >= progressEvery:
		p.told = time.Now()
		rate := humanize.IBytes(uint64(float64(max(done, 0)) / age.Seconds()))
		_, _ = fmt.Fprintf(p.w, "tgfs: %s: %s left of %s, %s/s\n", p.label, humanize.IBytes(uint64(n)), humanize.IBytes(uint64(p.total)), rate)
	}
}

func (p *progress) advance(done int64) {
	p.bar.SetTotal(p.total, false)
	p.bar.IncrInt64(max(0, done-p.barDone))
	p.barDone = max(p.barDone, done)
}

// end takes the bar down; the next output starts on a fresh line.
func (p *progress) end() {
	if p.bars != nil {
		p.bar.Abort(false)
		p.bars.Wait()
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
