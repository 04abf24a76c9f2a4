gunicorn --certfile /etc/ssl/shop.pem --keyfile /etc/ssl/shop.key --ssl-version TLSv1_2 --bind 0.0.0.0:$PORT shop:app
