package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// The marks in the page between which the tables are written.
const (
	pageBegin = "<!-- figures: generated -->\n"
	pageEnd   = "<!-- figures: end -->"
)

// write writes the tables into the page, and beside it the figures and the plots.
func (f *figures) write(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, begins := strings.Cut(string(text), pageBegin)
	_, tail, ends := strings.Cut(rest, pageEnd)
	if !begins || !ends {
		return fmt.Errorf("%s lacks the lines %q and %q", page, strings.TrimSpace(pageBegin), pageEnd)
	}
	raw, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	base := strings.TrimSuffix(page, ".md")
	busy := []string{"bare", "session", "durable", "durable session"}
	for file, data := range map[string]string{
		page:               head + pageBegin + f.tables() + pageEnd + tail,
		base + ".json":     string(raw) + "\n",
		base + "-rate.svg": f.plot("calls per second, the proxy's = 1", busy, func(r row) float64 { return r.Share }),
		base + "-cpu.svg":  f.plot("CPU of a call, the proxy's = 1", busy, func(r row) float64 { return r.Cost }),
	} {
		if err := os.WriteFile(file, []byte(data), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (f *figures) tables() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s; medians of %d rounds; a load average of %.1f when the run began.\n", f.When, f.Machine,
		f.Rounds, f.Load)
	for _, s := range cases {
		var rows []row
		for _, r := range f.Rows {
			if r.Case == s.name {
				rows = append(rows, r)
			}
		}
		if len(rows) == 0 {
			continue
		}
		p50 := "p50"
		if s.stream {
			p50 = "first chunk, p50"
		}
		fmt.Fprintf(&b, "\n**%s**: %s; %d at once\n\n", s.name, s.about, s.callers)
		fmt.Fprintf(&b, "| path | calls/s | to proxy | CPU | to proxy | %s | above proxy | p99 |\n", p50)
		b.WriteString("|---|---|---|---|---|---|---|---|\n")
		for _, r := range rows {
			fmt.Fprintf(&b, "| %s | %.0f | %.2f | %.0f us | %.1f | %.2f ms | %.2f ms | %.2f ms |\n", r.Path, r.Rate, r.Share,
				r.CPU, r.Cost, r.P50, r.Above, r.P99)
		}
	}
	return b.String()
}

// The plots are bars, a group for each case, a colour for each path.
const (
	barWidth, barGap, groupGap = 22, 3, 34
	plotHeight, plotTop        = 220, 56
	plotLeft, plotBottom       = 46, 30
)

var colours = map[string]string{
	"proxy": "#8a8f98", "bus": "#c3a24a", "fused": "#2b6cb0", "spread": "#2f9e6e", "split": "#b5533c",
	"three nodes": "#7d4fa1",
}

func (f *figures) plot(title string, groups []string, value func(r row) float64) string {
	var paths []string
	most := 1.0
	for _, r := range f.Rows {
		if !slices.Contains(groups, r.Case) {
			continue
		}
		if most = max(most, value(r)); !slices.Contains(paths, r.Path) {
			paths = append(paths, r.Path)
		}
	}
	group := len(paths)*(barWidth+barGap) + groupGap
	width, height := plotLeft+len(groups)*group, plotTop+plotHeight+plotBottom
	y := func(v float64) float64 { return plotTop + plotHeight - v/most*plotHeight }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" `+
		`font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="8" y="18" font-size="13">%s</text>`+"\n", title)
	for i, p := range paths {
		x := 8 + i*90
		fmt.Fprintf(&b, `<rect x="%d" y="28" width="10" height="10" fill="%s"/><text x="%d" y="37">%s</text>`+"\n", x,
			colours[p], x+14, p)
	}
	fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#bbb" stroke-dasharray="4 3"/><text x="%d" y="%.1f">1.0</text>`+"\n",
		plotLeft-6, y(1), width-8, 8, y(1)+4)
	for g, name := range groups {
		x := plotLeft + g*group
		fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text>`+"\n", x, height-10, name)
		for _, r := range f.Rows {
			i := slices.Index(paths, r.Path)
			if r.Case != name || i < 0 {
				continue
			}
			at := x + i*(barWidth+barGap)
			fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="%d" height="%.1f" fill="%s"/>`, at, y(value(r)), barWidth,
				value(r)/most*plotHeight, colours[r.Path])
			fmt.Fprintf(&b, `<text x="%d" y="%.1f" font-size="9">%.2f</text>`+"\n", at, y(value(r))-3, value(r))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
