package httpapi

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/files"
)

// PepperEnv names the environment variable of the server's pepper. With a pepper, a stolen keys file cannot even be
// searched for keys. Without one the hashes are plain SHA-256, which is enough for keys of 256 random bits.
const PepperEnv = "SHALLOT_KEY_PEPPER"

// KeyRecord is one entry of http.keys-file.
type KeyRecord struct {
	ID     string   `yaml:"id" json:"id"`
	Hash   string   `yaml:"hash" json:"hash"` // hmac-sha256:<hex> or sha256:<hex>
	Tenant string   `yaml:"tenant" json:"tenant,omitempty"`
	Role   string   `yaml:"role" json:"role,omitempty"` // caller (default) or operator
	User   string   `yaml:"user" json:"user,omitempty"`
	Models []string `yaml:"models" json:"models,omitempty"`
	Agents []string `yaml:"agents" json:"agents,omitempty"`
	Tools  []string `yaml:"tools" json:"tools,omitempty"`
}

type keysFile struct {
	Keys []KeyRecord `yaml:"keys" json:"keys"`
}

// KeyStore finds key records by hash. It does not change after loading and is safe for concurrent use.
type KeyStore struct {
	pepper          []byte
	peppered, plain bool                 // which kinds of hashes occur
	records         map[string]storedKey // by hash, as in the file
}

type storedKey struct {
	hash string
	id   api.Identity
}

// maxKeysFile bounds a keys-file, in bytes: a hundred thousand keys.
const maxKeysFile = 32 << 20

// LoadKeys reads a keys-file, YAML or JSON: {keys: [...]}.
func LoadKeys(path, pepper string) (*KeyStore, error) {
	raw, err := files.Read(path, maxKeysFile)
	if err != nil {
		return nil, fmt.Errorf("http.keys-file: %w", err)
	}
	k, err := ParseKeys(raw, pepper)
	if err != nil {
		return nil, fmt.Errorf("http.keys-file %s: %w", path, err)
	}
	return k, nil
}

// ParseKeys is LoadKeys for the text of a keys-file.
func ParseKeys(raw []byte, pepper string) (*KeyStore, error) {
	var f keysFile
	if t := bytes.TrimSpace(raw); bytes.HasPrefix(t, []byte("{")) {
		dec := json.NewDecoder(bytes.NewReader(t))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&f); err != nil {
			return nil, err
		}
	} else if err := yaml.UnmarshalWithOptions(raw, &f, yaml.Strict()); err != nil {
		return nil, err
	}
	if len(f.Keys) == 0 {
		return nil, fmt.Errorf("it has no keys; make one with: gateway key --id <name>")
	}
	k := &KeyStore{pepper: []byte(pepper), records: make(map[string]storedKey, len(f.Keys))}
	ids := map[string]bool{}
	for i, r := range f.Keys {
		at := fmt.Sprintf("keys[%d] (%s)", i, r.ID)
		if r.ID == "" || !api.Visible(r.ID) || ids[r.ID] {
			return nil, fmt.Errorf("%s: id must be visible ASCII and different from all others", at)
		}
		ids[r.ID] = true
		if err := k.add(r); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	return k, nil
}

func (k *KeyStore) add(r KeyRecord) error {
	r.Hash = strings.ToLower(r.Hash)
	scheme, sum, _ := strings.Cut(r.Hash, ":")
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return fmt.Errorf("hash must be hmac-sha256:<64 hex digits> or sha256:<64 hex digits>")
	}
	switch scheme {
	case "hmac-sha256":
		if len(k.pepper) == 0 {
			return fmt.Errorf("the hash needs the pepper that made it; set %s", PepperEnv)
		}
		k.peppered = true
	case "sha256":
		k.plain = true
	default:
		return fmt.Errorf("hash scheme %q; known: hmac-sha256, sha256", scheme)
	}
	if _, ok := k.records[r.Hash]; ok {
		return fmt.Errorf("another record has the same hash")
	}
	switch r.Role {
	case "":
		r.Role = api.RoleCaller
	case api.RoleCaller, api.RoleOperator:
	default:
		return fmt.Errorf("role %q; known: caller, operator", r.Role)
	}
	if r.Tenant == "" {
		r.Tenant = "default"
	}
	if !api.MetaValue(r.Tenant) || r.User != "" && !api.MetaValue(r.User) {
		return fmt.Errorf("tenant and user must be 1 to 256 visible ASCII characters")
	}
	k.records[r.Hash] = storedKey{r.Hash, api.Identity{
		KeyID: r.ID, Tenant: r.Tenant, Role: r.Role, User: r.User, Models: r.Models, Agents: r.Agents, Tools: r.Tools,
	}}
	return nil
}

// Find returns the identity of a key. The map is indexed by hash, so its timing reveals nothing about existing keys;
// the final comparison takes constant time.
func (k *KeyStore) Find(key string) (api.Identity, bool) {
	for _, h := range k.hashes(key) {
		if r, ok := k.records[h]; ok && subtle.ConstantTimeCompare([]byte(r.hash), []byte(h)) == 1 {
			return r.id, true
		}
	}
	return api.Identity{}, false
}

// Login is Find for a client that also says which key it has, as users of NATS do.
func (k *KeyStore) Login(name, key string) (api.Identity, bool) {
	if len(key) > maxKey {
		return api.Identity{}, false
	}
	id, ok := k.Find(key)
	if !ok || id.KeyID != name {
		return api.Identity{}, false
	}
	return id, true
}

func (k *KeyStore) hashes(key string) []string {
	var out []string
	if k.peppered {
		out = append(out, HashKey(key, k.pepper))
	}
	if k.plain {
		out = append(out, HashKey(key, nil))
	}
	return out
}

// HashKey is a key's hash in the form of the keys file.
func HashKey(key string, pepper []byte) string {
	if len(pepper) == 0 {
		sum := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	m := hmac.New(sha256.New, pepper)
	m.Write([]byte(key))
	return "hmac-sha256:" + hex.EncodeToString(m.Sum(nil))
}

// NewKey makes a key of 256 random bits. The prefix lets people and secret scanners recognise it.
func NewKey() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails (crypto/rand)
	return "sk-shallot-" + base64.RawURLEncoding.EncodeToString(b)
}
