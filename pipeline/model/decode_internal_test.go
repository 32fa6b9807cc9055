package model

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecoded(t *testing.T) { // (FO-7)
	t.Parallel()
	var zipped, deflated bytes.Buffer
	for _, w := range []io.WriteCloser{gzip.NewWriter(&zipped), zlib.NewWriter(&deflated)} {
		_, err := w.Write([]byte("hello"))
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	for name, tt := range map[string]struct {
		coding, body string
		ok           bool
	}{
		"none": {"", "hello", true}, "identity": {"identity", "hello", true}, "gzip": {" GZIP", zipped.String(), true},
		"x-gzip": {"x-gzip", zipped.String(), true}, "deflate": {"deflate", deflated.String(), true},
		"not gzip": {"gzip", "hello, this is no gzip", false}, "not deflate": {"deflate", "hello", false}, "unknown": {"br", "x", false},
		"damaged": {"gzip", strings.Replace(zipped.String(), zipped.String()[len(zipped.String())-8:len(zipped.String())-4], "abcd", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := &http.Response{Header: http.Header{"Content-Encoding": {tt.coding}}, Body: io.NopCloser(strings.NewReader(tt.body))}
			b, err := io.ReadAll(decoded(res))
			if tt.ok {
				require.NoError(t, err)
				require.Equal(t, "hello", string(b))
				return
			}
			require.ErrorIs(t, err, errCoding)
		})
	}
	res := &http.Response{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: io.NopCloser(strings.NewReader(zipped.String()[:12]))}
	_, err := io.ReadAll(decoded(res))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a connection that broke is not bad data")
	require.False(t, errors.Is(err, errCoding))
}
