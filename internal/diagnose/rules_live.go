// SPDX-License-Identifier: Apache-2.0

package diagnose

var startRules = [...]Rule{
	{"slow-start", Warning, "start", "A start has a stage that can be removed",
		"The start is broken down into stages that add up to its length; the largest one that can be removed comes first, with its gain.",
		"A stage of 5 s or more can be removed and the start takes 30 s or more.", "The start is shorter, or its time is not explained by any line.",
		"The finding lists the remedies with the seconds that each saves, and whether the number is measured or assumed."},
	{"start-failed", Error, "start", "The engine did not come up",
		"The log ends in an error before the server answered.", "The log has the error of an engine that does not start and no line that it is ready.", "It came up later in the same log.",
		"Read the log from the line that the finding names."},
	{"probe-beyond-budget", Error, "start", "The startup probe fails beyond any start",
		"Refused connections are normal while a model loads, for minutes. Beyond half an hour the server does not come up or the probe asks the wrong place.",
		"Events show a startup probe that failed for more than 30 minutes.", "It failed for a shorter time.", "Look at the container's log."},
	{"image-pull-failed", Error, "start", "The image cannot be pulled",
		"The pod never starts.", "Events say ErrImagePull or ImagePullBackOff.", "The pull succeeded.", "Check name, tag, pull secret and registry limits."},
}

var historyRules = [...]Rule{
	{"never-scaled", Error, "scaling", "The fleet was overloaded and the count did not change",
		"The scaler looks at something that does not move. The finding names the cause with its arithmetic, tests the signals that people would try next, and replays a proposal on the same history.",
		"The queue exceeded its target, or the time to the first token grew five-fold, and the count never changed below its maximum.",
		"The count changed, or there was no overload.", "The object that the finding prints; what scaling cannot fix is said as well."},
	{"capped-at-max", Warning, "scaling", "The fleet is at its maximum",
		"The scaler would do more and may not.", "The queue exceeds its target while the count equals the maximum.", "There is room below the maximum.", "Raise the maximum, or shed load."},
	{"inert-autoscaler", Error, "scaling", "The autoscaler only repeats the current count",
		"It has no input (a model name that matches nothing, a query without series) and publishes desired = current. Every condition is green.",
		"The policy's model is reported by no replica; or desired equals the count in every row while the queue changes.",
		"The names match, or desired differed at least once.", "Use the name that the replicas report; without data publish no opinion."},
	{"flapping", Warning, "scaling", "The count swings",
		"Replicas are removed and started again within times in which they can hardly serve: each swing costs a start and a cache.",
		"The count reversed at least twice, with a period below two hours and holds below three start-up times.",
		"The rhythm is that of the traffic.", "A scale-down window of twice the cold start; a target away from the operating point."},
	{"pending-cascade", Error, "scaling", "Replicas that load are asked for again",
		"The ratio is computed from ready replicas. While new ones load the ready ones stay hot, so the scaler doubles at every step.",
		"The desired count grew by half or more at least twice while the ready replicas stayed the same.", "The ready replicas grew.", "Count pending replicas once; AverageValue does."},
	{"runaway", Error, "scaling", "The count multiplies itself",
		"A target of type Value on a total: the ratio does not fall when replicas are added.", "The count doubled at least three times while the signal stayed the same and the replicas became ready.",
		"The signal grew, or the replicas stayed pending (a cascade).", "AverageValue."},
	{"scaled-late", Warning, "scaling", "The first step came late",
		"Between the overload and the first step minutes passed, before any start-up time.", "The count grew more than 120 s after the queue exceeded its target.", "It grew earlier.", "No scale-up window, fast polling, a leading signal."},
	{"lost-signal-scale-down", Error, "scaling", "Replicas were removed while the signal was gone",
		"No data was read as no load.", "The count fell in a row whose signal is empty, NaN or an error.", "The signal was there.", "Report an error instead of 0, with a fallback."},
}

var trafficRules = [...]Rule{}
