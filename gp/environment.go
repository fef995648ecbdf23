// SPDX-License-Identifier: Apache-2.0

package gp

import (
	"fmt"
	"os"
)

// The environment variables that Open reads. Each is 0, 1, true or false, or
// unset, which is 0; anything else is an error.
const (
	// EnvP2POff keeps P2P out of use, whatever the program asks for: for a host
	// whose P2P is broken.
	EnvP2POff = "GP_P2P_OFF"
	// EnvP2PTrust takes the driver's word for P2P, without the checked transfers,
	// where the program leaves Options.P2P at P2PAuto.
	EnvP2PTrust = "GP_P2P_TRUST"
	// EnvLowLatency is Options.LowLatency.
	EnvLowLatency = "GP_LOW_LATENCY"
	// EnvNoExchange is Options.NoExchange.
	EnvNoExchange = "GP_NO_EXCHANGE"
)

// environment changes the options as the environment says.
func (o *Options) environment() error {
	off, err := envBool(EnvP2POff)
	if err != nil {
		return err
	}
	trust, err := envBool(EnvP2PTrust)
	if err != nil {
		return err
	}
	low, err := envBool(EnvLowLatency)
	if err != nil {
		return err
	}
	without, err := envBool(EnvNoExchange)
	if err != nil {
		return err
	}
	switch {
	case off && trust:
		return fmt.Errorf("%s and %s are both set", EnvP2POff, EnvP2PTrust)
	case off:
		o.P2P = P2POff
	case trust && o.P2P == P2PAuto:
		o.P2P = P2PTrust
	}
	o.LowLatency = o.LowLatency || low
	o.NoExchange = o.NoExchange || without
	return nil
}

func envBool(name string) (bool, error) {
	switch v, set := os.LookupEnv(name); v {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	default:
		if !set {
			return false, nil
		}
		return false, fmt.Errorf("%s=%q: it can be 0, 1, true, false or unset", name, v)
	}
}
