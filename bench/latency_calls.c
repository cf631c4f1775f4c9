/*
 * Makes the cheapest calls of each kind, and prints nanoseconds for one: the best of its batches.
 *
 *     latency_calls FILE
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 20, CALLS = 50000, CONNECTIONS = 200 };

static int zero, file, listener;
static struct sockaddr_in at;
static char byte;

static void check(long result, const char *what)
{
	if (result < 0) {
		perror(what);
		exit(1);
	}
}

static void untimed(void) { syscall(SYS_getppid); }
static void device(void) { check(read(zero, &byte, 1), "read"); }
static void reading(void) { check(pread(file, &byte, 1, 0), "pread"); }
static void writing(void) { check(pwrite(file, &byte, 1, 0), "pwrite"); }

static void connection(void)
{
	int client = socket(AF_INET, SOCK_STREAM, 0), server;

	check(connect(client, (struct sockaddr *)&at, sizeof(at)), "connect");
	server = accept(listener, NULL, NULL);
	check(server, "accept");
	/* No port may be left waiting: there are not as many as calls. */
	struct linger at_once = { .l_onoff = 1 };
	check(setsockopt(client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), "linger");
	close(client);
	close(server);
}

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static void measure(const char *name, void (*call)(void), int calls, const char *end)
{
	double best = 1e18;

	for (int batch = 0; batch < BATCHES; batch++) {
		double began = now_ns(), took;

		for (int each = 0; each < calls; each++)
			call();
		took = (now_ns() - began) / calls;
		if (took < best)
			best = took;
	}
	printf("\"%s\": %.1f%s", name, best, end);
}

int main(int count, char **words)
{
	socklen_t size = sizeof(at);

	if (count != 2)
		return 2;
	zero = open("/dev/zero", O_RDONLY);
	file = open(words[1], O_RDWR | O_CREAT, 0600);
	check(zero, "/dev/zero");
	check(file, words[1]);
	writing();
	listener = socket(AF_INET, SOCK_STREAM, 0);
	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(bind(listener, (struct sockaddr *)&at, sizeof(at)), "bind");
	check(listen(listener, 8), "listen");
	check(getsockname(listener, (struct sockaddr *)&at, &size), "getsockname");
	printf("{");
	measure("one that is not timed", untimed, CALLS, ", ");
	measure("read of a non-file", device, CALLS, ", ");
	measure("pread of a byte", reading, CALLS, ", ");
	measure("pwrite of a byte", writing, CALLS, ", ");
	measure("a TCP connection", connection, CONNECTIONS, "}\n");
	return 0;
}
