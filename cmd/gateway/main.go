// Command gateway is the HTTP side of Shallot: the OpenAI face, health, and the control surfaces.
package main

func main() {}
