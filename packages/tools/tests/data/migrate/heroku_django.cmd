web: python manage.py migrate --noinput && gunicorn shop.wsgi --log-file - --bind 0.0.0.0:$PORT --workers ${WEB_CONCURRENCY:-3}
