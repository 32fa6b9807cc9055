package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
)

// notChecked are keys of a definition that comes over an interface which the file does not have, or has elsewhere.
var notChecked = []string{"annotations", "source", "held", "hash", "executor.command"}

// CheckTool holds a tool definition in JSON to the rules of the file's tool.tools, in the file's words: unknown keys
// with a suggestion, wrong types, values out of bounds, all of them at once. ${VAR} is text in it. What is no JSON
// object is for others to refuse.
func CheckTool(raw []byte) error {
	var t Tool
	return checkJSON(raw, &t)
}

// ReadAgent reads the definition of an agent in JSON, by the rules of the file's agent.agents; see [CheckTool].
func ReadAgent(raw []byte) (AgentSpec, error) {
	var a AgentSpec
	a.SetDefaults()
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) || !json.Valid(raw) {
		return a, errors.New("it is not a JSON object")
	}
	err := checkJSON(raw, &a)
	return a, err
}

// checkJSON reads JSON into what v points to.
func checkJSON(raw []byte, into any) error {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil || compact.Len() == 0 || compact.Bytes()[0] != '{' {
		return nil
	}
	src := newSource("", nil)
	src.plain = true
	root := src.parse(compact.Bytes())
	if root == nil || len(src.found) > 0 {
		return nil // JSON that YAML reads in another way
	}
	d := &decoder{source: src, at: map[string]*node{}, meant: map[string]bool{}}
	v := reflect.ValueOf(into).Elem()
	d.value(root, v, "", field{})
	c := &checker{decoder: d, refused: map[string]bool{}}
	for _, p := range d.found {
		c.refused[p.Path] = true
	}
	c.value(v, "", field{})
	if a, ok := into.(*AgentSpec); ok {
		c.agent(*a, "")
	}
	var wrong []string
	for _, p := range d.found {
		if !slices.ContainsFunc(notChecked, func(k string) bool { return p.Path == k || strings.HasPrefix(p.Path, k+".") }) {
			wrong = append(wrong, p.Path+": "+p.Text)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}
