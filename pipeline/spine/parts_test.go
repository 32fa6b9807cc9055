package spine_test

func runPart(string) int { return 2 }
