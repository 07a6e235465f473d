/* Stands in for libc's calls to the network: notes each in the file of EPWATCH_TEST_NOTES, and lets none through. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *call, const char *what) {
  char line[512];
  const char *path = getenv("EPWATCH_TEST_NOTES");
  int length = snprintf(line, sizeof line, "%s %s\n", call, what ? what : "");
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0 || length < 0) return;
  if ((size_t)length >= sizeof line) length = sizeof line - 1;
  if (write(file, line, (size_t)length) < 0) abort();
  close(file);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  (void)service, (void)hints, (void)found;
  note("getaddrinfo", name);
  return EAI_FAIL;
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
  static int (*real)(int, const struct sockaddr *, socklen_t);
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) {
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "connect");
    return real(socket, address, length);
  }
  note("connect", address->sa_family == AF_INET ? "IPv4" : "IPv6");
  errno = ENETUNREACH;
  return -1;
}
