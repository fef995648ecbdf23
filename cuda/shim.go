// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
)

// ErrNoLibrary says that there is no driver library.
var ErrNoLibrary = errors.New("no CUDA driver library")

func openLibrary() (api.Driver, error) { return nil, ErrNoLibrary }
