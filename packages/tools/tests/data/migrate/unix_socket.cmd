gunicorn --workers 3 --bind unix:/run/shop/app.sock shop.wsgi:application
