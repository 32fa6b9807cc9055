package args

import "slices"

// CleanTexts returns a schema with each description and title passed through clean. Nothing else in it changes. A
// schema that cannot be read is returned as it is.
func CleanTexts(schema []byte, clean func(string) string) []byte {
	if len(schema) == 0 {
		return schema
	}
	v, err := parseValue(schema)
	if err != nil || !cleanTexts(v, true, clean) {
		return schema
	}
	return v.write(nil)
}

func cleanTexts(v *value, isSchema bool, clean func(string) string) (changed bool) {
	for i, x := range v.vals {
		if v.kind == kArray {
			changed = cleanTexts(x, isSchema, clean) || changed
			continue
		}
		switch k := v.keys[i]; {
		case isSchema && slices.Contains(dataKeys, k):
		case isSchema && (k == "description" || k == "title") && x.kind == kString:
			if s := clean(x.str); s != x.str {
				v.vals[i], changed = newString(s), true
			}
		default:
			changed = cleanTexts(x, !isSchema || !slices.Contains(mapKeys, k), clean) || changed
		}
	}
	return changed
}
