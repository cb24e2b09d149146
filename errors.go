package tgfs

import (
	"errors"
	"fmt"
)

// Conditions that are not POSIX errnos. Test for them with errors.Is.
var (
	// ErrCorrupt: stored bytes did not open under their seal, or do not have
	// the form they must have. They are never returned as data.
	ErrCorrupt = errors.New("stored bytes are corrupt")
	// ErrGone: Telegram answered that the message, or its document, does not
	// exist. It is never guessed from a short or failed answer.
	ErrGone = errors.New("not in Telegram")
	// ErrClosed: the object was closed before or during the call.
	ErrClosed = errors.New("closed")
)

// InputError is a mistake of the person who runs tgfs: a bad flag, config,
// token, key or mount point. Its text is one line that says what is wrong and
// how to mend it. Commands print it and exit with code 2; nothing was changed.
type InputError struct{ Msg string }

// Error returns the line.
func (e *InputError) Error() string { return e.Msg }

// Inputf makes an InputError.
func Inputf(format string, args ...any) error {
	return &InputError{Msg: fmt.Sprintf(format, args...)}
}
