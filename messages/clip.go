package messages

// Clip shortens a text to at most n characters, for a message or a log. What is cut ends in three dots, which count;
// n is at least 3.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	at, cut := 0, 0
	for i := range s {
		if at == n-3 {
			cut = i
		}
		if at++; at > n {
			return s[:cut] + "..."
		}
	}
	return s
}
