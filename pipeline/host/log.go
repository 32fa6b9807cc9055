package host

import (
	"io"
	"log/slog"
	"os"
	"strings"
)

// NewLog returns the process's logger: text on a terminal, JSON elsewhere, unless LOG_FORMAT (text, json) says
// otherwise; LOG_LEVEL is debug, info, warn or error.
func NewLog(w io.Writer, getenv func(string) string) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(getenv("LOG_LEVEL"))); err != nil {
		level = slog.LevelInfo
	}
	o := &slog.HandlerOptions{Level: level}
	format := strings.ToLower(getenv("LOG_FORMAT"))
	if format == "" && terminal(w) {
		format = "text"
	}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, o))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
