// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/kube"
)

// stackReport is what `penstock check stack -o json` prints.
type stackReport struct {
	Schema    string          `json:"schema"` // penstock/stack/v1
	Workloads []stackWorkload `json:"workloads"`
}

type stackWorkload struct {
	Target  string   `json:"target"`
	Engine  string   `json:"engine,omitempty"`
	RunBy   string   `json:"run_by"`
	Picks   []string `json:"picks"`
	Scales  []string `json:"scales"`
	Picking string   `json:"penstock_may_pick"`
	Scaling string   `json:"penstock_may_scale"`
	Labels  string   `json:"labels"`
}

func checkStackCmd(e *Env) *cobra.Command {
	var kubeconfig, namespace string
	var all bool
	c := &cobra.Command{
		Use:   "stack",
		Short: "Say who picks and who scales in a cluster, and what Penstock may own",
		Long: `List the model servers of a cluster: plain Deployments and StatefulSets, those of an
InferencePool (llm-d), those of a KServe InferenceService or LLMInferenceService. For
each it says who picks a replica for a request, who sets how many there are, what of
that Penstock may own and what it leaves alone. It changes nothing.`,
		Example: `  penstock check stack --namespace models
  penstock check stack --all-namespaces -o json`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: $KUBECONFIG, ~/.kube/config or the service account)")
	f.StringVarP(&namespace, "namespace", "n", "", "namespace (default: that of the kubeconfig or of the pod)")
	f.BoolVarP(&all, "all-namespaces", "A", false, "all namespaces")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := kube.Connect(kubeconfig, nil)
		if err != nil {
			return failf("name a kubeconfig with --kubeconfig, or run in a pod with a service account", "%v", err)
		}
		ns := namespace
		if ns == "" && !all {
			ns = cl.Namespace
		}
		list, err := cl.Stack(c.Context(), ns)
		if err != nil {
			return &Fault{Code: ExitUnreachable, Err: err, Hint: "is the API server up, and may this account list workloads and autoscalers?"}
		}
		rep := stackReport{Schema: "penstock/stack/v1", Workloads: []stackWorkload{}}
		for _, w := range list {
			rep.Workloads = append(rep.Workloads, stackWorkload{w.Target, w.Engine, w.RunBy, orNone(w.Picks), orNone(w.Scales), w.Picking, w.Scaling, w.Labels})
		}
		if *out == "json" {
			return printJSON(e.Stdout, rep)
		}
		if len(list) == 0 {
			fmt.Fprintln(e.Stdout, "no model servers found")
		}
		for _, w := range rep.Workloads {
			fmt.Fprintf(e.Stdout, "%s, %s\n", w.Target, cmp.Or(w.Engine, "unknown engine"))
			for _, l := range [][2]string{{"run by", w.RunBy}, {"picks", cmp.Or(strings.Join(w.Picks, ", "), "nobody")}, {"scales", cmp.Or(strings.Join(w.Scales, ", "), "nobody")},
				{"Penstock may pick", w.Picking}, {"Penstock may scale", w.Scaling}} {
				fmt.Fprintf(e.Stdout, "  %-19s %s\n", l[0]+":", l[1])
			}
		}
		return nil
	}
	return c
}

func orNone(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
