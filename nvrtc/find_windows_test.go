// SPDX-License-Identifier: Apache-2.0

package nvrtc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWindowsDirectories(t *testing.T) {
	p := at("windows", map[string]string{
		"CUDA_PATH":   `C:\CUDA\v13.0`,
		"PATH":        `C:\tools;relative;C:\CUDA\v13.0\bin`,
		"VIRTUAL_ENV": `C:\venv`,
	})
	require.Equal(t, []string{
		`C:\CUDA\v13.0\bin\x64`, `C:\CUDA\v13.0\bin`, `C:\tools`,
		`C:\venv\Lib\site-packages\nvidia\cu13\bin\x86_64`,
		`C:\venv\Lib\site-packages\nvidia\cu13\bin\arm64`,
		`C:\venv\Lib\site-packages\nvidia\cuda_nvrtc\bin`,
	}, p.directories())
}
