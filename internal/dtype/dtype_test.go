// SPDX-License-Identifier: Apache-2.0

package dtype

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	for _, typ := range Types {
		require.True(t, typ.Valid())
		for _, name := range []string{typ.String(), typ.Tag()} {
			got, err := ParseType(name)
			require.NoError(t, err)
			require.Equal(t, typ, got)
		}
		require.GreaterOrEqual(t, typ.Wide().Size(), typ.Size())
		require.Equal(t, typ.Wide(), typ.Wide().Wide())
		require.Equal(t, typ.Float(), typ.Wide().Float())
	}
	for _, op := range Ops {
		require.True(t, op.Valid())
		got, err := ParseOp(op.String())
		require.NoError(t, err)
		require.Equal(t, op, got)
	}
	require.False(t, Type(0).Valid())
	require.False(t, (Uint64 + 1).Valid())
	require.Equal(t, "Type(0)", Type(0).String())
	require.False(t, Op(5).Valid())
	require.Equal(t, "Op(5)", Op(5).String())
	_, err := ParseType("float8")
	require.ErrorContains(t, err, "bfloat16")
	_, err = ParseOp("xor")
	require.ErrorContains(t, err, "avg")
}

func TestPartial(t *testing.T) {
	for _, typ := range Types {
		for _, op := range Ops {
			p := Partial(typ, op)
			switch {
			case op == Min || op == Max:
				require.Equal(t, typ, p, "a minimum is an element")
			case typ.Float(), op == Avg:
				require.Equal(t, typ.Wide(), p, "%v %v", typ, op)
			default:
				require.Equal(t, typ, p, "wrapping sums and products need no more bits: %v %v", typ, op)
			}
		}
	}
}
