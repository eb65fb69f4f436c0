/* A server that speaks as much of MySQL's protocol as the preloaded library reads, over
 * OpenSSL, with a thread for each connection; and its client.
 *
 *     tls server HOW PORT KEY CERTIFICATE
 *     tls client PORT STEP...
 *     tls plugin LIBRARY server ...     the server in a library that is loaded by dlopen
 *
 * HOW the server uses OpenSSL:
 *     fd      on a descriptor that does not block: SSL_read until it wants more, then poll
 *     ex      on one that blocks, by SSL_read_ex and SSL_write_ex
 *     poll    polls whenever SSL_pending is 0, and only then reads
 *     bio     through a BIO of its own that has no descriptor, as PostgreSQL 18 does
 *     memory  carries the bytes between the socket and memory BIOs itself
 * It aborts if a call leaves an error in OpenSSL's queue, or another errno than its own.
 *
 * Every query is answered with OK and the number of queries of its connection; "begin" and
 * "commit" open and end a transaction. A STEP of the client is a query, or
 *     +two     two queries in one record        +split   one query in three records
 *     +long    a query of several records       +key     an update of the keys
 *     +half    close_notify and half a close after a query, before its reply is read
 *     +again   another connection, which resumes the session of this one
 *     +renew   a new handshake on the same connection (renegotiation), which TLS 1.2 has
 *     +line    waits for a line on standard input
 * With TLS_1_2 in its environment the client offers no later version.
 *
 * OpenSSL's functions are declared here, so that its headers need not be installed. With WOLF
 * they are wolfSSL's, with which the server knows "fd" and "poll"; its queue has errors that are
 * none. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef WOLF
#define TLS_server_method wolfTLS_server_method
#define SSL_CTX_new wolfSSL_CTX_new
#define SSL_CTX_use_certificate_file wolfSSL_CTX_use_certificate_file
#define SSL_CTX_use_PrivateKey_file wolfSSL_CTX_use_PrivateKey_file
#define SSL_CTX_set_options wolfSSL_CTX_set_options
#define SSL_new wolfSSL_new
#define SSL_free wolfSSL_free
#define SSL_set_fd wolfSSL_set_fd
#define SSL_accept wolfSSL_accept
#define SSL_shutdown wolfSSL_shutdown
#define SSL_read wolfSSL_read
#define SSL_write wolfSSL_write
#define SSL_get_error wolfSSL_get_error
#define SSL_pending wolfSSL_pending
#define ERR_clear_error wolfSSL_ERR_clear_error
#define PEEK_ERROR() 0
#else
#define PEEK_ERROR() ERR_peek_error()
#endif

#ifndef HOST
typedef struct ssl SSL;
typedef struct ctx SSL_CTX;
typedef struct session SSL_SESSION;
typedef struct bio BIO;
typedef struct bio_method BIO_METHOD;
const void *TLS_server_method(void), *TLS_client_method(void);
SSL_CTX *SSL_CTX_new(const void *);
int SSL_CTX_use_certificate_file(SSL_CTX *, const char *, int);
int SSL_CTX_use_PrivateKey_file(SSL_CTX *, const char *, int);
SSL *SSL_new(SSL_CTX *);
void SSL_free(SSL *), SSL_set_bio(SSL *, BIO *, BIO *);
int SSL_set_fd(SSL *, int), SSL_accept(SSL *), SSL_connect(SSL *), SSL_shutdown(SSL *);
int SSL_read(SSL *, void *, int), SSL_write(SSL *, const void *, int);
int SSL_read_ex(SSL *, void *, size_t, size_t *);
int SSL_write_ex(SSL *, const void *, size_t, size_t *);
int SSL_get_error(const SSL *, int), SSL_pending(const SSL *), SSL_key_update(SSL *, int);
int SSL_renegotiate(SSL *), SSL_do_handshake(SSL *);
unsigned long SSL_CTX_set_options(SSL_CTX *, unsigned long);
long SSL_CTX_ctrl(SSL_CTX *, int, long, void *);
SSL_SESSION *SSL_get1_session(SSL *);
int SSL_set_session(SSL *, SSL_SESSION *), SSL_session_reused(const SSL *);
unsigned long ERR_peek_error(void);
void ERR_clear_error(void);
BIO *BIO_new(const BIO_METHOD *);
const BIO_METHOD *BIO_s_mem(void);
BIO_METHOD *BIO_meth_new(int, const char *);
int BIO_meth_set_read(BIO_METHOD *, int (*)(BIO *, char *, int));
int BIO_meth_set_write(BIO_METHOD *, int (*)(BIO *, const char *, int));
int BIO_meth_set_ctrl(BIO_METHOD *, long (*)(BIO *, int, long, void *));
int BIO_read(BIO *, void *, int), BIO_write(BIO *, const void *, int);
void BIO_set_data(BIO *, void *), *BIO_get_data(BIO *), BIO_set_init(BIO *, int);
enum { WANT_READ = 2, WANT_WRITE = 3, PEM = 1, BIO_FLUSH = 11, MAX_VERSION = 124, TLS_1_2 = 0x303,
       SOURCE_SINK = 0x400, ALLOW_CLIENT_RENEGOTIATION = 0x100 };

static enum { FD, EX, POLL, BIOS, MEMORY } how;

struct connection {
    int fd;
    SSL *ssl;
    BIO *in, *out;
};

static void wait_for(int fd, short events)
{
    struct pollfd one = {.fd = fd, .events = events};
    while (poll(&one, 1, -1) < 0 && errno == EINTR)
        ;
}

static int own_read(BIO *bio, char *to, int length)
{
    return (int)recv((int)(long)BIO_get_data(bio), to, (size_t)length, 0);
}

static int own_write(BIO *bio, const char *from, int length)
{
    return (int)send((int)(long)BIO_get_data(bio), from, (size_t)length, MSG_NOSIGNAL);
}

static long own_ctrl(BIO *bio, int what, long number, void *more)
{
    (void)bio, (void)number, (void)more;
    return what == BIO_FLUSH;
}

static BIO *own_bio(int fd)
{
    static BIO_METHOD *method;
    if (!method) {
        method = BIO_meth_new(127 | SOURCE_SINK, "own");
        BIO_meth_set_read(method, own_read);
        BIO_meth_set_write(method, own_write);
        BIO_meth_set_ctrl(method, own_ctrl);
    }
    BIO *bio = BIO_new(method);
    BIO_set_data(bio, (void *)(long)fd);
    BIO_set_init(bio, 1);
    return bio;
}

/* Sends what is in the memory BIO. */
static int carry_out(struct connection *one)
{
    char bytes[32768];
    int length;
    while ((length = BIO_read(one->out, bytes, sizeof bytes)) > 0)
        if (send(one->fd, bytes, (size_t)length, MSG_NOSIGNAL) != length)
            return 0;
    return 1;
}

/* After a call that did not succeed: 1 if it is to be made again. */
static int again(struct connection *one, int result)
{
    int saved = errno, error = SSL_get_error(one->ssl, result);
    if (error != WANT_READ && error != WANT_WRITE)
        return 0;
    if (PEEK_ERROR() || ((how == FD || how == POLL) && saved != EAGAIN))
        abort();
    if (how != MEMORY) {
        wait_for(one->fd, error == WANT_READ ? POLLIN : POLLOUT);
        return 1;
    }
    char bytes[4096];
    ssize_t got = carry_out(one) ? recv(one->fd, bytes, sizeof bytes, 0) : 0;
    return got > 0 && BIO_write(one->in, bytes, (int)got) == got;
}

static int receive(struct connection *one, unsigned char *to, size_t length)
{
    while (length > 0) {
        size_t got = 0;
        int result;
        ERR_clear_error();
        if (how == POLL && SSL_pending(one->ssl) == 0)
            wait_for(one->fd, POLLIN);
        errno = 0;
        if (how == EX)
            result = SSL_read_ex(one->ssl, to, length, &got);
        else {
            result = SSL_read(one->ssl, to, (int)length);
            got = result > 0 ? (size_t)result : 0;
        }
        if (result > 0 && PEEK_ERROR())
            abort();
        to += got;
        length -= got;
        if (result <= 0 && !again(one, result))
            return 0;
    }
    return 1;
}

static int transmit(struct connection *one, const unsigned char *from, size_t length)
{
    for (;;) {
        size_t put = 0;
        int result;
        errno = 0;
        if (how == EX)
            result = SSL_write_ex(one->ssl, from, length, &put);
        else {
            result = SSL_write(one->ssl, from, (int)length);
            put = result > 0 ? (size_t)result : 0;
        }
        if (result > 0)
            return put == length && (how != MEMORY || carry_out(one));
        if (!again(one, result))
            return 0;
    }
}

static int ok(struct connection *one, unsigned char sequence, int in_transaction, int count)
{
    unsigned char packet[] = {7, 0, 0, sequence, 0, (unsigned char)count, 0, 0, 0, 0, 0};
    packet[7] = in_transaction ? 1 : 2;
    return transmit(one, packet, sizeof packet);
}

static int packet(struct connection *one, unsigned char *body, size_t room)
{
    unsigned char head[4];
    if (!receive(one, head, 4))
        return -1;
    size_t length = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
    return length <= room && receive(one, body, length) ? (int)length : -1;
}

static void serve(struct connection *one)
{
    static _Thread_local unsigned char body[1 << 17];
    int length, count = 0, in_transaction = 0;
    if (packet(one, body, sizeof body) < 32 || !ok(one, 3, 0, 0))
        return;
    while ((length = packet(one, body, sizeof body)) > 0 && body[0] == 3) {
        if (length == 6 && !memcmp(body + 1, "begin", 5))
            in_transaction = 1;
        if (length == 7 && !memcmp(body + 1, "commit", 6))
            in_transaction = 0;
        if (!ok(one, 1, in_transaction, ++count))
            return;
    }
}

static SSL_CTX *server_context;

static void *connection(void *argument)
{
    struct connection one = {.fd = (int)(long)argument};
    static const unsigned char greeting[] = "\x0e\0\0\0\x0a" "5.5.5-openssl";
    unsigned char request[36];
    int result, flags = fcntl(one.fd, F_GETFL);
    if (send(one.fd, greeting, sizeof greeting - 1, MSG_NOSIGNAL) < 0 ||
        recv(one.fd, request, sizeof request, MSG_WAITALL) != sizeof request)
        goto end;
    if (how == FD || how == POLL)
        fcntl(one.fd, F_SETFL, flags | O_NONBLOCK);
    one.ssl = SSL_new(server_context);
    if (how == MEMORY) {
        one.in = BIO_new(BIO_s_mem());
        one.out = BIO_new(BIO_s_mem());
        SSL_set_bio(one.ssl, one.in, one.out);
    } else if (how == BIOS) {
        BIO *bio = own_bio(one.fd);
        SSL_set_bio(one.ssl, bio, bio);
    } else
        SSL_set_fd(one.ssl, one.fd);
    do
        result = SSL_accept(one.ssl);
    while (result <= 0 && again(&one, result));
    if (result > 0 && (how != MEMORY || carry_out(&one)))
        serve(&one);
    SSL_shutdown(one.ssl);
    if (how == MEMORY)
        carry_out(&one);
    SSL_free(one.ssl);
end:
    ERR_clear_error();
    close(one.fd);
    return 0;
}

static void *accepting(void *argument)
{
    int listener = (int)(long)argument;
    for (;;) {
        int fd = accept(listener, 0, 0);
        pthread_t thread;
        if (fd < 0 || pthread_create(&thread, 0, connection, (void *)(long)fd))
            abort();
        pthread_detach(thread);
    }
}

static int server(char **arguments)
{
    static const char *const names[] = {"fd", "ex", "poll", "bio", "memory"};
    while (strcmp(arguments[0], names[how]))
        if (++how > MEMORY)
            return 2;
    sigset_t end;
    int number, yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigaddset(&end, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &end, 0);
    sigdelset(&end, SIGPIPE);
    server_context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_PrivateKey_file(server_context, arguments[2], PEM) != 1 ||
        SSL_CTX_use_certificate_file(server_context, arguments[3], PEM) != 1)
        return 3;
    SSL_CTX_set_options(server_context, ALLOW_CLIENT_RENEGOTIATION);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    pthread_t thread;
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 512) ||
        pthread_create(&thread, 0, accepting, (void *)(long)listener))
        return 1;
    sigwait(&end, &number);
    _exit(0);
}

/* Prints the numbers of this many replies; 0 at the end of the connection. */
static int print_replies(struct connection *one, int count)
{
    unsigned char reply[64];
    for (; count > 0; count--) {
        if (packet(one, reply, sizeof reply) < 7)
            return 0;
        printf("%d\n", reply[1]);
        fflush(stdout);
    }
    return 1;
}

static int ask(struct connection *one, const char *text, size_t length)
{
    static unsigned char query[1 << 17];
    size_t packet = length + 1;
    memcpy(query, (unsigned char[]){(unsigned char)packet, (unsigned char)(packet >> 8),
                                    (unsigned char)(packet >> 16), 0, 3}, 5);
    memcpy(query + 5, text, length);
    return transmit(one, query, length + 5);
}

/* Connects, logs in, and resumes a session if there is one. */
static int log_in(struct connection *one, int port, SSL_SESSION *session)
{
    static SSL_CTX *context;
    struct sockaddr_in at = {.sin_family = AF_INET};
    unsigned char request[36] = {32, 0, 0, 1, 0, 10}, login[64] = {60, 0, 0, 2, 0, 10};
    unsigned char greeting[18];
    at.sin_port = htons((uint16_t)port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    one->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        if (getenv("TLS_1_2"))
            SSL_CTX_ctrl(context, MAX_VERSION, TLS_1_2, 0);
    }
    if (connect(one->fd, (struct sockaddr *)&at, sizeof at) ||
        recv(one->fd, greeting, sizeof greeting, MSG_WAITALL) != sizeof greeting ||
        send(one->fd, request, sizeof request, MSG_NOSIGNAL) != sizeof request)
        return 0;
    one->ssl = SSL_new(context);
    SSL_set_fd(one->ssl, one->fd);
    if (session && SSL_set_session(one->ssl, session) != 1)
        return 0;
    return SSL_connect(one->ssl) == 1 && transmit(one, login, sizeof login) &&
           packet(one, login, sizeof login) >= 7;
}

/* Ends a connection, and waits until the server has closed it: by then all queries are counted. */
static void hang_up(struct connection *one)
{
    unsigned char rest[64];
    SSL_shutdown(one->ssl);
    shutdown(one->fd, SHUT_WR);
    while (recv(one->fd, rest, sizeof rest, 0) > 0)
        ;
    SSL_free(one->ssl);
    close(one->fd);
}

static int client_port;

static int step(struct connection *one, const char *what)
{
    static char text[60000];
    static const unsigned char two[] = "\3\0\0\0\3ab\3\0\0\0\3cd";
    int character;
    if (!strcmp(what, "+two"))
        return transmit(one, two, 14) && print_replies(one, 2);
    if (!strcmp(what, "+split")) {
        int done = transmit(one, two, 2);
        usleep(30000);
        done = done && transmit(one, two + 2, 3);
        usleep(30000);
        return done && transmit(one, two + 5, 2) && print_replies(one, 1);
    }
    if (!strcmp(what, "+long"))
        return ask(one, text, sizeof text) && print_replies(one, 1);
    if (!strcmp(what, "+key"))
        return SSL_key_update(one->ssl, 1) == 1;
    if (!strcmp(what, "+renew"))
        return SSL_renegotiate(one->ssl) == 1 && SSL_do_handshake(one->ssl) == 1;
    if (!strcmp(what, "+half"))
        return ask(one, "half", 4) && SSL_shutdown(one->ssl) >= 0 &&
               shutdown(one->fd, SHUT_WR) == 0 && print_replies(one, 1);
    if (!strcmp(what, "+again")) {
        SSL_SESSION *session = SSL_get1_session(one->ssl);
        hang_up(one);
        return log_in(one, client_port, session) && SSL_session_reused(one->ssl);
    }
    if (!strcmp(what, "+line")) {
        while ((character = getchar()) != '\n')
            if (character == EOF)
                return 0;
        return 1;
    }
    return ask(one, what, strlen(what)) && print_replies(one, 1);
}

static int client(char **arguments)
{
    struct connection one = {.fd = -1};
    how = EX;
    client_port = atoi(arguments[0]);
    if (!log_in(&one, client_port, 0))
        return 2;
    for (arguments++; *arguments; arguments++)
        if (!step(&one, *arguments))
            return 3;
    hang_up(&one);
    return 0;
}

int run(int count, char **arguments)
{
    if (count == 6 && !strcmp(arguments[1], "server"))
        return server(arguments + 2);
    return count > 2 && !strcmp(arguments[1], "client") ? client(arguments + 2) : 2;
}
#endif

#ifndef PLUGIN
int main(int count, char **arguments)
{
#ifdef HOST
    void *plugin = count > 2 ? dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL) : 0;
    int (*run)(int, char **) = plugin ? (int (*)(int, char **))dlsym(plugin, "run") : 0;
    if (!run)
        return 4;
    return run(count - 2, arguments + 2);
#else
    return run(count, arguments);
#endif
}
#endif
