"""Pages that send events, and a WebSocket."""

import json

import django_grip
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpResponse, HttpResponseForbidden, JsonResponse
from django_eventstream import channel_permission_changed, get_current_event_id, send_event
from django_eventstream.utils import get_storage, publish_event
from django_eventstream.views import events as stream_of_events
from gripcontrol import HttpResponseFormat, HttpStreamFormat, WebSocketMessageFormat

from grip_site.channels import denial


def send(request, channel):
    """Sends `count` events, numbered from `first`; to no one of the users in `skip`."""
    query = request.GET
    first = int(query.get("first", "0"))
    skipped = [str(user.pk) for user in User.objects.filter(username__in=query.getlist("skip"))]
    for number in range(first, first + int(query.get("count", "1"))):
        data = query.get("data", number)
        send_event(channel, "message", data, skip_user_ids=skipped, async_publish="async" in query)
    return JsonResponse({"id": get_current_event_id([channel])})


def send_turned(request, channel):
    """Sends events that are stored in their order and published in the other one, as several workers may."""
    first, count = int(request.GET["first"]), int(request.GET["count"])
    stored = [get_storage().append_event(channel, "message", str(number)) for number in range(first, first + count)]
    for event in reversed(stored):
        publish_event(channel, "message", event.data, str(event.id), str(event.id - 1), blocking=True)
    return HttpResponse()


def events(request):
    """The stream of django-eventstream; the file `fetches` has the queries of its requests for more."""
    if request.GET.get("link") == "next":
        with open(settings.DATA / "fetches", "a") as file:
            file.write(f"{request.META['QUERY_STRING']}\n")
    return stream_of_events(request)


def deny(request, channel, name):
    """A user may no longer read a channel."""
    user = User.objects.get(username=name)
    denial(user, channel).touch()
    channel_permission_changed(user, channel)
    return HttpResponse()


def allow(request, channel, name):
    denial(User.objects.get(username=name), channel).unlink()
    return HttpResponse()


def stream(request, channel):
    """A stream of django-grip alone."""
    django_grip.set_hold_stream(request, channel, keep_alive_data=b"beat\n", keep_alive_timeout=1)
    return HttpResponse("begun\n", content_type="text/plain")


def poll(request, channel):
    """A response of django-grip that waits for the first publication."""
    django_grip.set_hold_longpoll(request, channel, timeout=request.GET.get("timeout"))
    return HttpResponse("nothing\n", content_type="text/plain")


def publish(request, channel):
    """Publishes in every format, or closes."""
    content = request.GET.get("content")
    if content is None:
        code = int(request.GET["code"])
        formats = [HttpStreamFormat(close=True), WebSocketMessageFormat(action="close", code=code, reason="published")]
    else:
        binary = "binary" in request.GET
        formats = [
            HttpStreamFormat(content),
            HttpResponseFormat(body=content, headers={"X-From": "publication"}),
            WebSocketMessageFormat(content, binary=binary),
        ]
    django_grip.publish(channel, formats, blocking=True)
    return HttpResponse()


@django_grip.websocket_only
def chat(request, channel):
    """A WebSocket that echoes, and does what its messages say. What it was told of the end is in the file `ends`."""
    socket = request.wscontext
    if socket.is_opening():
        if request.GET.get("as") == "stranger":
            return HttpResponseForbidden("no strangers")
        socket.accept()
        socket.subscribe(channel)
        socket.meta["count"] = "0"
        socket.send(json.dumps({"proxied": request.grip.proxied, "signed": request.grip.signed, "id": socket.id}))
    while socket.can_recv():
        try:
            message = socket.recv()
        except OSError:
            note(socket, "disconnected")
            break
        if message is None:
            note(socket, f"closed with {socket.close_code}")
            socket.close(socket.close_code)
            break
        socket.meta["count"] = str(int(socket.meta["count"]) + 1)
        if message == "leave":
            socket.unsubscribe(channel)
        elif message == "detach":
            socket.detach()
        elif message == "fail":
            raise RuntimeError("in the middle of a WebSocket")
        elif message == "count":
            socket.send(socket.meta["count"])
            continue
        elif isinstance(message, str) and message.startswith("close "):
            socket.close(int(message.removeprefix("close ")))
            break
        (socket.send if isinstance(message, str) else socket.send_binary)(message)
    return None


def note(socket, text):
    with open(settings.DATA / "ends", "a") as file:
        file.write(f"{socket.id} {text}\n")
