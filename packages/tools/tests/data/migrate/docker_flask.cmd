FLASK_ENV=production exec gunicorn --bind=0.0.0.0:8000 --workers=2 --threads=4 --worker-class=gthread --worker-tmp-dir=/dev/shm --access-logfile=- "shop:create_app()"
