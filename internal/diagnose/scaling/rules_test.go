// SPDX-License-Identifier: Apache-2.0

package scaling_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/scaling"
	"github.com/penstock-project/penstock/internal/manifest"
)

// TestHistoryRules has, for every rule on histories, one where it fires and one
// where it must not.
func TestHistoryRules(t *testing.T) {
	hpa := func(body string) string {
		return "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: chat, namespace: prod}\nspec: {scaleTargetRef: {kind: Deployment, name: vllm-chat}, " + body + "}\n"
	}
	queue := "metrics: [{type: Pods, pods: {metric: {name: vllm_num_requests_waiting}, target: {type: AverageValue, averageValue: 5}}}]"
	for _, c := range []struct {
		name, table, manifest, log string
		cold                       float64
		want                       []string
	}{
		{"never-scaled fires without a file", "t_s,replicas,waiting,ttft_p95_s\n0,2,0,0.4\n30,2,40,2\n60,2,90,9\n", "", "", 0, []string{"never-scaled"}},
		{"never-scaled by units", "t_s,replicas,waiting\n0,2,0\n30,2,40\n60,2,90\n",
			hpa("maxReplicas: 8, metrics: [{type: Pods, pods: {metric: {name: gpu_cache_usage_perc}, target: {type: AverageValue, averageValue: 40}}}]"), "", 0, []string{"never-scaled"}},
		{"an idle fleet need not scale", "t_s,replicas,waiting\n0,2,0\n30,2,3\n60,2,1\n", "", "", 0, nil},
		{"a fleet that scaled in time", "t_s,replicas,waiting\n0,2,0\n30,2,40\n60,6,60\n90,6,20\n", "", "", 0, nil},
		{"capped-at-max fires", "t_s,replicas,waiting\n0,8,0\n30,8,90\n60,8,200\n", hpa("minReplicas: 2, maxReplicas: 8, " + queue), "", 0, []string{"capped-at-max"}},
		{"room below the maximum", "t_s,replicas,waiting\n0,8,0\n30,8,1\n60,8,3\n", hpa("minReplicas: 2, maxReplicas: 8, " + queue), "", 0, nil},
		{"inert-autoscaler by echo", "t_s,replicas,desired,waiting\n0,3,3,0\n15,3,3,9\n30,3,3,12\n45,3,3,14\n60,3,3,11\n", "", "", 0, []string{"inert-autoscaler"}},
		{"desired that differed once", "t_s,replicas,desired,waiting\n0,3,3,0\n15,3,4,9\n30,4,4,12\n45,4,4,4\n60,4,4,3\n", "", "", 0, nil},
		{"inert-autoscaler by name", "", "metadata: {annotations: {model-id: llama}}\nmin: 1\n", "", 0, nil},
		{"flapping by noise", "t_s,replicas\n0,5\n15,8\n30,6\n45,8\n60,7\n75,8\n", "", "", 0, []string{"flapping"}},
		{"flapping as share", `[{"time":"2026-01-01T00:00:00Z","replicas":2},{"time":"2026-01-01T00:02:00Z","replicas":6},{"time":"2026-01-01T00:04:00Z","replicas":2},{"time":"2026-01-01T00:06:00Z","replicas":6},{"time":"2026-01-01T00:08:00Z","replicas":2}]`, "", "", 300, []string{"flapping"}},
		{"the rhythm of days", "t_s,replicas\n0,2\n30000,8\n60000,2\n116400,8\n146400,2\n", "", "", 300, nil},
		{"one peak", "t_s,replicas\n0,2\n60,6\n900,6\n1800,2\n", "", "", 60, nil},
		{"pending-cascade", "t_s,ready,replicas,waiting\n0,2,2,60\n15,2,4,60\n30,2,8,61\n45,2,16,60\n", "", "", 0, []string{"pending-cascade"}},
		{"pending that is ready in between", "t_s,ready,replicas,waiting\n0,2,2,10\n60,2,4,12\n300,4,4,18\n360,4,8,25\n600,8,8,3\n", "", "", 0, nil},
		{"runaway", "t_s,ready,replicas,waiting\n0,1,1,2\n15,2,2,2\n30,4,4,2\n45,8,8,2\n60,16,16,2\n", "", "", 0, []string{"runaway"}},
		{"growth with the load", "t_s,ready,replicas,waiting\n0,1,1,4\n15,2,2,9\n30,4,4,19\n45,8,8,39\n60,16,16,70\n", "", "", 0, nil},
		{"scaled-late", "t_s,replicas,waiting\n0,2,0\n30,2,40\n120,2,80\n240,2,140\n300,6,170\n", "", "", 0, []string{"scaled-late"}},
		{"lost-signal-scale-down", "t_s,replicas,waiting\n0,8,30\n30,8,34\n60,8,NaN\n360,2,NaN\n", "", "", 0, []string{"lost-signal-scale-down"}},
		{"held while the signal was gone", "t_s,replicas,waiting\n0,8,30\n30,8,34\n60,8,NaN\n360,8,NaN\n", "", "", 0, nil},
		{"down because the load went", "t_s,replicas,waiting\n0,8,30\n30,8,3\n360,2,0\n", "", "", 0, nil},
		{"a dump of decisions", "", "", "t0 ready=3 current=3 -> 6\nt1 ready=3 current=6 (3 pending) -> 12\nt2 ready=3 current=12 (9 pending) -> 24\n", 0, []string{"pending-cascade"}},
		{"no columns that are known", "a,b\n1,2\n", "", "", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := scaling.Input{Log: c.log, ColdStart: c.cold}
			if c.table != "" {
				tb, err := diagnose.ParseTable(c.table)
				if err != nil {
					t.Fatal(err)
				}
				in.Histories = []scaling.History{{File: "h", Table: tb}}
			}
			if c.manifest != "" {
				set, problems := manifest.Read([]manifest.Input{{Name: "m.yaml", Data: []byte(c.manifest)}})
				if len(problems) > 0 {
					t.Fatal(problems[0])
				}
				in.Set = set
			}
			r := scaling.Analyse(in)
			want(t, r, append([]string{}, c.want...)...)
			if b, err := json.Marshal(r); err != nil || !strings.Contains(string(b), `"schema":"penstock/findings/v1"`) {
				t.Errorf("JSON %v", err)
			}
		})
	}
	if f := scaling.Analyse(scaling.Input{Histories: []scaling.History{{Table: mustTable(t, "t_s,replicas,waiting\n0,2,0\n30,2,40\n60,2,90\n")}}, Set: func() *diagnose.Set {
		s, _ := manifest.Read([]manifest.Input{{Name: "m.yaml", Data: []byte(hpa("maxReplicas: 8, metrics: [{type: Pods, pods: {metric: {name: gpu_cache_usage_perc}, target: {type: AverageValue, averageValue: 40}}}]"))}})
		return s
	}()}).Findings[0]; true {
		evidence(t, f, "cause", "target-unreachable")
	}
}

func mustTable(t *testing.T, text string) *diagnose.Table {
	t.Helper()
	tb, err := diagnose.ParseTable(text)
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func TestMatrix(t *testing.T) {
	tb := scaling.FromMatrix(`{"status":"success","data":{"resultType":"matrix","result":[
 {"metric":{"__name__":"vllm:num_requests_waiting","pod":"a"},"values":[[100,"0"],[160,"30"],[220,"60"]]},
 {"metric":{"__name__":"vllm:num_requests_waiting","pod":"b"},"values":[[100,"0"],[160,"20"],[220,"NaN"]]},
 {"metric":{"__name__":"vllm:kv_cache_usage_perc","pod":"a"},"values":[[100,"0.2"],[220,"0.9"]]},
 {"metric":{"__name__":"kube_deployment_spec_replicas"},"values":[[100,"2"],[160,"2"],[220,"2"]]}]}}`)
	if tb == nil || len(tb.Rows) != 3 || tb.Rows[1][1] != "50" || tb.Rows[1][2] != "" {
		t.Fatalf("%+v", tb)
	}
	r := scaling.Analyse(scaling.Input{Histories: []scaling.History{{Table: tb}}})
	want(t, r, "never-scaled")
	if scaling.FromMatrix(`{"status":"success","data":{"resultType":"vector","result":[]}}`) != nil || scaling.FromMatrix("t_s,n\n") != nil {
		t.Error("something else is read as a matrix")
	}
}

func TestInertNames(t *testing.T) {
	read := func(files ...string) *diagnose.Set {
		var in []manifest.Input
		for i, f := range files {
			in = append(in, manifest.Input{Name: []string{"policy.yaml", "models.json"}[i], Data: []byte(f)})
		}
		s, _ := manifest.Read(in)
		return s
	}
	models := `{"object":"list","data":[{"id":"meta-llama/Llama-3.1-8B"},{"id":"sql-adapter"}]}`
	r := scaling.Analyse(scaling.Input{Set: read("metadata: {annotations: {llm-d.ai/model-id: llama-3.1-8b}}\nmin: 1\n", models)})
	want(t, r, "inert-autoscaler")
	evidence(t, r.Findings[0], "suggest", "meta-llama/Llama-3.1-8B")
	want(t, scaling.Analyse(scaling.Input{Set: read("metadata: {annotations: {model-id: sql-adapter}}\nmin: 1\n", models)}))
}

func FuzzAnalyse(f *testing.F) {
	f.Add("t_s,replicas,waiting\n0,2,0\n30,2,40\n60,2,90\n", "ready=2 current=4 (2 pending) -> 8")
	f.Add("t_s,ready,spec_replicas,running_per_ready,waiting_total,target_inflight_per_replica\n0,2,2,32,64,32\n", "")
	f.Fuzz(func(t *testing.T, text, log string) {
		in := scaling.Input{Log: log}
		if tb, err := diagnose.ParseTable(text); err == nil {
			in.Histories = []scaling.History{{Table: tb}}
		}
		if _, err := json.Marshal(scaling.Analyse(in)); err != nil {
			t.Error(err)
		}
	})
}

func TestCodesAreKnown(t *testing.T) {
	var codes []string
	for _, r := range diagnose.Rules() {
		codes = append(codes, r.Code)
	}
	for _, c := range []string{"never-scaled", "capped-at-max", "inert-autoscaler", "flapping", "pending-cascade", "runaway", "scaled-late", "lost-signal-scale-down"} {
		if !slices.Contains(codes, c) {
			t.Errorf("%s is in no table", c)
		}
	}
}
