package tool

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/shallot-nats/shallot/pipeline/files"
)

// References resolves the references in the header values of a definition, in the process that sends the request:
// ${VAR} is an environment variable, ${file:/path} the content of a file, ${secret:name} the content of the file of
// this name in Dir, and $$ a plain $. A definition keeps the reference, so that the registry holds no secret. The zero
// value knows no variables and no secrets; it is safe for concurrent use.
type References struct {
	Getenv func(name string) string
	Dir    string
}

var reference = regexp.MustCompile(`\$\$|\$\{([^}]*)\}?`)

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	secretName   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

// Resolve replaces the references by their values. The error names each reference that has none, and no value.
func (r References) Resolve(value string) (string, error) {
	var wrong error
	out := reference.ReplaceAllStringFunc(value, func(ref string) string {
		if ref == "$$" {
			return "$"
		}
		got, err := r.look(strings.TrimSuffix(ref[2:], "}"))
		wrong = errors.Join(wrong, err)
		return got
	})
	return out, wrong
}

func (r References) look(name string) (string, error) {
	if file, ok := strings.CutPrefix(name, "file:"); ok {
		return readSecret(file, "the file "+file)
	}
	if secret, ok := strings.CutPrefix(name, "secret:"); ok {
		if r.Dir == "" {
			return "", fmt.Errorf("the secret %s: tool.secrets-dir is not set", secret)
		}
		return readSecret(filepath.Join(r.Dir, secret), "the secret "+secret)
	}
	if r.Getenv != nil {
		if v := r.Getenv(name); v != "" {
			return v, nil
		}
	}
	return "", fmt.Errorf("the variable %s is not set", name)
}

// maxSecret bounds the file of a secret, in bytes.
const maxSecret = 1 << 20

func readSecret(file, what string) (string, error) {
	b, err := files.Read(file, maxSecret)
	if err != nil {
		return "", fmt.Errorf("%s cannot be read", what)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// checkReferences refuses references that cannot be read, and those that the source may not name: a client that
// registers a tool over the API must not learn the variables and files of the workers.
func checkReferences(value string, source Source) error {
	for _, m := range reference.FindAllStringSubmatch(value, -1) {
		secret, isSecret := strings.CutPrefix(m[1], "secret:")
		file, isFile := strings.CutPrefix(m[1], "file:")
		switch {
		case m[0] == "$$":
		case !strings.HasSuffix(m[0], "}"), isSecret && !secretName.MatchString(secret), isFile && !filepath.IsAbs(file),
			!isSecret && !isFile && !variableName.MatchString(m[1]):
			return errors.New("a reference is ${VAR}, ${file:/path} or ${secret:name}; write $$ for a plain $")
		case !isSecret && source != Operator:
			return errors.New("only the operator's file may name variables and files; write ${secret:name}")
		}
	}
	return nil
}
