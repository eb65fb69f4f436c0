/* What the preloaded library adds to a query of MySQL's protocol, plain and under TLS.
 *
 *     query KEY CERTIFICATE
 *
 * Client and server are one thread, connected over loopback. The server's part of a batch of
 * queries (two reads and one write each) is timed by the CPU time of the thread, in turn by
 * the functions that the library replaces and by those behind them, on the same connection.
 * Prints, for each connection, the medians of both in nanoseconds as JSON.
 *
 * OpenSSL's functions are declared here, so that its headers need not be installed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct ssl SSL;
typedef struct ctx SSL_CTX;
const void *TLS_server_method(void), *TLS_client_method(void);
SSL_CTX *SSL_CTX_new(const void *);
int SSL_CTX_use_certificate_file(SSL_CTX *, const char *, int);
int SSL_CTX_use_PrivateKey_file(SSL_CTX *, const char *, int);
SSL *SSL_new(SSL_CTX *);
int SSL_set_fd(SSL *, int), SSL_accept(SSL *), SSL_connect(SSL *);
int SSL_read(SSL *, void *, int), SSL_write(SSL *, const void *, int);

enum { BATCH = 200, BATCHES = 401, PEM = 1 };
static const unsigned char query[] = "\x0a\0\0\0\3select 42";
static const unsigned char ok[] = "\7\0\0\1\0\0\0\2\0\0";
static int (*real_read)(SSL *, void *, int), (*real_write)(SSL *, const void *, int);

struct connection {
    int client, server;
    SSL *client_ssl, *server_ssl;
};

static void check(int is_well, const char *what)
{
    if (!is_well) {
        fprintf(stderr, "query: %s failed\n", what);
        exit(1);
    }
}

static int take(struct connection *one, int is_hooked, void *to, int length)
{
    if (!one->server_ssl)
        return is_hooked ? (int)recv(one->server, to, (size_t)length, 0)
                         : (int)syscall(SYS_recvfrom, one->server, to, (size_t)length, 0, 0, 0);
    return is_hooked ? SSL_read(one->server_ssl, to, length)
                     : real_read(one->server_ssl, to, length);
}

static int reply(struct connection *one, int is_hooked, const void *from, int length)
{
    if (!one->server_ssl)
        return is_hooked
                   ? (int)send(one->server, from, (size_t)length, 0)
                   : (int)syscall(SYS_sendto, one->server, from, (size_t)length, 0, 0, 0);
    return is_hooked ? SSL_write(one->server_ssl, from, length)
                     : real_write(one->server_ssl, from, length);
}

/* The client's end. */
static void ask(struct connection *one, const void *from, int length)
{
    int done = one->client_ssl ? SSL_write(one->client_ssl, from, length)
                               : (int)send(one->client, from, (size_t)length, 0);
    check(done == length, "sending a query");
}

static void answered(struct connection *one, int length)
{
    unsigned char bytes[64];
    while (length > 0) {
        int most = length < (int)sizeof bytes ? length : (int)sizeof bytes;
        int done = one->client_ssl ? SSL_read(one->client_ssl, bytes, most)
                                   : (int)recv(one->client, bytes, (size_t)most, 0);
        check(done > 0, "receiving a reply");
        length -= done;
    }
}

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double batch(struct connection *one, int is_hooked)
{
    unsigned char bytes[64];
    for (int at = 0; at < BATCH; at++)
        ask(one, query, sizeof query - 1);
    double begun = now_ns();
    for (int at = 0; at < BATCH; at++) {
        check(take(one, is_hooked, bytes, 4) == 4, "reading a header");
        check(take(one, is_hooked, bytes, bytes[0]) == 10, "reading a query");
        check(reply(one, is_hooked, ok, sizeof ok) == sizeof ok, "replying");
    }
    double took = now_ns() - begun;
    answered(one, BATCH * (int)sizeof ok);
    return took / BATCH;
}

static int by_value(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, BATCHES, sizeof *values, by_value);
    return values[BATCHES / 2];
}

static void measure(struct connection *one, const char *name, const char *end)
{
    static double direct[BATCHES], beyond[BATCHES];
    for (int at = 0; at < BATCHES; at++) {
        double hooked = batch(one, 1);
        direct[at] = batch(one, 0);
        beyond[at] = hooked - direct[at];
    }
    printf("\"%s\": {\"ns\": %.1f, \"beyond_ns\": %.1f}%s", name, median(direct),
           median(beyond), end);
}

/* Both ends of a new connection. */
static struct connection connected(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    struct connection one = {.client = socket(AF_INET, SOCK_STREAM, 0)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), buffer = 1 << 20;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(!bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 1) &&
              !getsockname(listener, (struct sockaddr *)&at, &length) &&
              !connect(one.client, (struct sockaddr *)&at, sizeof at),
          "connecting");
    one.server = accept(listener, 0, 0);
    check(one.server >= 0, "accept");
    setsockopt(one.server, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(one.client, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    setsockopt(one.server, IPPROTO_TCP, TCP_NODELAY, &buffer, sizeof buffer);
    setsockopt(one.client, IPPROTO_TCP, TCP_NODELAY, &buffer, sizeof buffer);
    close(listener);
    return one;
}

/* The greeting, and what the client sends before TLS or as its login. */
static void greet(struct connection *one, int length, unsigned char capability)
{
    unsigned char bytes[128] = {(unsigned char)length, 0, 0, 1, 0, capability};
    check(send(one->server, "\5\0\0\0\x0a" "5.5", 9, 0) == 9, "greeting");
    answered(one, 9);
    ask(one, bytes, 4 + length);
    check(recv(one->server, bytes, 4, 0) == 4, "reading a login's header");
    check(recv(one->server, bytes, (size_t)length, 0) == length, "reading a login");
}

/* Shakes hands in turn, since both ends are one thread. */
static void encrypt(struct connection *one, char **files)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    check(SSL_CTX_use_PrivateKey_file(context, files[0], PEM) == 1 &&
              SSL_CTX_use_certificate_file(context, files[1], PEM) == 1,
          "reading key and certificate");
    SSL *server = SSL_new(context), *client = SSL_new(SSL_CTX_new(TLS_client_method()));
    SSL_set_fd(server, one->server);
    SSL_set_fd(client, one->client);
    int flags[2] = {fcntl(one->server, F_GETFL), fcntl(one->client, F_GETFL)}, rounds = 0;
    fcntl(one->server, F_SETFL, flags[0] | O_NONBLOCK);
    fcntl(one->client, F_SETFL, flags[1] | O_NONBLOCK);
    while ((SSL_connect(client) != 1) | (SSL_accept(server) != 1))
        check(++rounds < 1000, "the handshake");
    fcntl(one->server, F_SETFL, flags[0]);
    fcntl(one->client, F_SETFL, flags[1]);
    one->client_ssl = client;
    one->server_ssl = server;
    unsigned char login[64] = {60, 0, 0, 2, 0, 10};
    ask(one, login, sizeof login);
    check(take(one, 1, login, 4) == 4 && take(one, 1, login, 60) == 60, "the login");
}

int main(int count, char **arguments)
{
    check(count == 3, "reading the arguments");
    void *openssl = dlopen("libssl.so.3", RTLD_NOW);
    check(openssl != 0, "dlopen");
    *(void **)&real_read = dlsym(openssl, "SSL_read");
    *(void **)&real_write = dlsym(openssl, "SSL_write");
    struct connection plain = connected(), tls = connected();
    greet(&plain, 60, 2);
    greet(&tls, 32, 10);
    encrypt(&tls, arguments + 1);
    /* The OK that ends the login. */
    reply(&plain, 1, ok, sizeof ok);
    answered(&plain, sizeof ok);
    reply(&tls, 1, ok, sizeof ok);
    answered(&tls, sizeof ok);
    printf("{");
    measure(&plain, "plain", ", ");
    measure(&tls, "tls", "}\n");
    return 0;
}
