package host

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/goccy/go-yaml"

	"github.com/shallot-nats/shallot/pipeline/config"
)

// configRevision tells two configurations apart: processes of one installation should show the same. Secrets are no
// part of it.
func configRevision(c *config.Config) string {
	text, err := yaml.Marshal(c)
	if err != nil {
		return "unknown"
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}
